"""The contract of a rule around another rule."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from dllm.canvas import Canvas, Request
from dllm.common.rowwise import Owner
from dllm.contract import Need, Schedule, State, Step, View
from dllm.samplers.base import Sampler
from dllm.setting import Setting, altered

INNER = "inner."


class Wrapper(Sampler):
    """Base of the rules around ``inner``: what that one is, needs, refuses and prepares, the wrapper does as well,
    until it says otherwise.

    A wrapper decides in ``propose``, from what ``super().propose`` returns; ``step`` is for rules that wrap nothing.
    The inner rule's state lies under ``inner.``, that of a rule within it under ``inner.inner.``: names never meet.
    """

    stateless = False

    def __init__(self, inner: Sampler) -> None:
        self.inner = inner
        self.deterministic, self.revocable, self.branches = inner.deterministic, inner.revocable, inner.branches
        self.tempered, self.by_confidence = inner.tempered, inner.by_confidence
        self.announces, self.lookahead = inner.announces, inner.lookahead

    def __init_subclass__(cls) -> None:
        assert cls.step is Sampler.step, f"{cls.__name__} wraps a rule, so it decides in propose: step is never called."

    def needs(self) -> tuple[Need, ...]:
        return self.inner.needs()

    def resolved(self, setting: Setting) -> Sampler:
        return altered(self, inner=self.inner.resolved(setting))

    def check(self, setting: Setting) -> None:
        self.inner.check(setting)

    def prepare(self, request: Request) -> Request:
        return self.inner.prepare(request)

    def turns(self, canvas: Canvas) -> Tensor | None:
        return self.inner.turns(canvas)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        return outside(self.inner.start(canvas, blocks))

    def propose(self, view: View, state: State) -> Step:
        step = self.inner.propose(view, inside(state))
        return replace(step, state=outside(step.state))

    def choose(self, view: View, owner: Owner, state: State) -> Tensor:
        return self.inner.choose(view, owner, inside(state))


def inside(state: State) -> State:
    """The inner rule's state, by the names it gave."""
    return {key.removeprefix(INNER): value for key, value in state.items() if key.startswith(INNER)}


def outside(state: State) -> State:
    """The inner rule's state as the wrapper keeps it."""
    return {INNER + key: value for key, value in state.items()}


def alone(step: Step, rows: Tensor) -> Step:
    """The step with a single candidate, the first, in each of ``rows`` [B]."""
    if step.owner.is_single:
        return step
    row, first = step.owner.row, step.owner.first
    kept = (~rows[row]).index_fill(0, first, True).nonzero()[:, 0]
    parts = {name: getattr(step, name)[kept] for name in ("commit", "tokens", "confidence", "remask")}
    accepted = None if step.accepted is None else step.accepted[kept]
    return replace(step, **parts, accepted=accepted, owner=Owner(row[kept], len(rows)))
