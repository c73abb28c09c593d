"""The contract of a rule around another rule."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from dllm.blocks.base import Blocks
from dllm.canvas import Canvas, Request, first_of, of
from dllm.compose.setting import Setting, but
from dllm.samplers.base import Sampler, State, Step, View
from dllm.scores import Need

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
        self.knows_next, self.lookahead = inner.knows_next, inner.lookahead

    def __init_subclass__(cls) -> None:
        assert cls.step is Sampler.step, f"{cls.__name__} wraps a rule, so it decides in propose: step is never called."

    def needs(self) -> tuple[Need, ...]:
        return self.inner.needs()

    def bound(self, setting: Setting) -> Sampler:
        return but(self, inner=self.inner.bound(setting))

    def check(self, setting: Setting) -> None:
        self.inner.check(setting)

    def prepare(self, request: Request) -> Request:
        return self.inner.prepare(request)

    def turns(self, canvas: Canvas) -> Tensor | None:
        return self.inner.turns(canvas)

    def start(self, canvas: Canvas, blocks: Blocks) -> State:
        return outside(self.inner.start(canvas, blocks))

    def propose(self, view: View, state: State) -> Step:
        step = self.inner.propose(view, inside(state))
        return replace(step, state=outside(step.state))

    def keep(self, view: View, owner: Tensor, state: State) -> Tensor:
        return self.inner.keep(view, owner, inside(state))


def inside(state: State) -> State:
    """The inner rule's state, by the names it gave."""
    return {key.removeprefix(INNER): value for key, value in state.items() if key.startswith(INNER)}


def outside(state: State) -> State:
    """The inner rule's state as the wrapper keeps it."""
    return {INNER + key: value for key, value in state.items()}


def alone(step: Step, rows: Tensor) -> Step:
    """The step with a single candidate, the first, in each of ``rows`` [B]."""
    owner = step.owner
    if owner is None:
        return step
    kept = (~rows[owner]).index_fill(0, first_of(owner), True).nonzero()[:, 0]
    chosen = {name: of(getattr(step, name), kept) for name in ("commit", "tokens", "confidence", "accepted", "remask")}
    return replace(step, **chosen, owner=None if len(kept) == len(rows) else owner[kept])
