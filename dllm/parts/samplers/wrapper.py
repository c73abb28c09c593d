"""The contract of a sampler that wraps another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn import Module

from dllm.common.errors import Refusal, Set, UserError, name_of
from dllm.common.rowwise import Owner
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas, Request
from dllm.contract.setting import Setting, replaced
from dllm.contract.shared_values import NOTHING_SHARED
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.parts.samplers.base import Sampler

INNER = "inner."


class Wrapper(Sampler):
    """Base of the rules that wrap ``inner``. Every attribute and method delegates to it until a subclass overrides it,
    but ``warning``: each rule speaks for itself.

    A wrapper decides in ``propose``, from what ``super().propose`` returns; ``step`` is never called. The inner rule's
    state, and what it shares, have names that begin with ``inner.``, those of a rule inside that one with
    ``inner.inner.``, so that names never collide.
    """

    traits = SamplerTraits(stateless=False, deterministic=True, by_confidence=True)

    def __init__(self, inner: Sampler) -> None:
        if inner.traits.renoises:
            raise Refusal(
                "{sampler} chooses among the positions that a rule may decide, but {sampler/inner} decides a "
                f"whole block at once. Use {{sampler={name_of(inner)}}} by itself.",
                [name_of(self), name_of(inner)],
            )
        if inner.traits.soft is not None:
            raise Refusal(
                "{sampler} changes what a rule decides from one forward, but {sampler/inner} also says what the "
                f"next one is given. Use {{sampler={name_of(inner)}}} by itself.",
                [name_of(self), name_of(inner)],
            )
        if inner.traits.verifies:
            raise Refusal(
                "{sampler} changes what a rule decides from one forward, but {sampler/inner} takes two for each of "
                "its steps.",
                [name_of(self), name_of(inner)],
                (Set("sampler/inner", "confidence"),),
            )
        self.inner = inner
        self.traits = inner.traits.but(stateless=False, verifies="", ranks_by="", **overridden_traits(type(self)))

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.step is not Sampler.step:
            raise UserError(f"{cls.__name__} wraps a rule, so its step is never called: write propose instead.")

    @property
    def per_block(self) -> Mapping[str, float]:
        return {INNER + name: start for name, start in self.inner.per_block.items()}

    def needs(self) -> tuple[Need, ...]:
        return self.inner.needs()

    def resolved(self, setting: Setting) -> Sampler:
        return replaced(self, inner=self.inner.resolved(setting))

    def prepare(self, request: Request) -> Request:
        return self.inner.prepare(request)

    def turns(self, canvas: Canvas) -> Tensor | None:
        return self.inner.turns(canvas)

    def may_wait(self, canvas: Canvas) -> Tensor:
        return self.inner.may_wait(canvas)

    def shared(self) -> Mapping[str, Tensor | Module]:
        return {INNER + name: value for name, value in self.inner.shared().items()}

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        return super().start(canvas, blocks) | outside(self.inner.start(canvas, blocks))

    def propose(self, view: View, state: State) -> Step:
        step = self.inner.propose(view_inside(view), inside(state))
        return step.but(state=outside(step.state))

    def choose(self, view: View, owner: Owner, state: State) -> Tensor:
        return self.inner.choose(view_inside(view), owner, inside(state))


def overridden_traits(cls: type[Sampler]) -> dict[str, Any]:
    """What the class of a wrapper says otherwise than every wrapper."""
    theirs = vars(Wrapper.traits)
    return {name: value for name, value in vars(cls.traits).items() if value != theirs[name]}


def nested(sampler: Sampler) -> Iterator[Sampler]:
    """The rule, the one inside it, and so on; the last one wraps nothing."""
    yield sampler
    while isinstance(sampler, Wrapper):
        sampler = sampler.inner
        yield sampler


def view_inside(view: View) -> View:
    """The view with what the inner rule shares, under its own names."""
    return view if view.shared is NOTHING_SHARED else replace(view, shared=view.shared.inside(INNER))


def inside(state: State) -> State:
    """The inner rule's state under the inner rule's own names."""
    return {key.removeprefix(INNER): value for key, value in state.items() if key.startswith(INNER)}


def outside(state: State) -> State:
    """The inner rule's state under the wrapper's names."""
    return {INNER + key: value for key, value in state.items()}
