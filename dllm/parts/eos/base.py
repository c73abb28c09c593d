"""The contract of an end-of-text policy: what happens to a row that has committed an end-of-text token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from torch import Tensor

from dllm.common.errors import name_of
from dllm.common.ranking import one_of
from dllm.contract import BlockState, Need, Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.clash import Clash
from dllm.contract.traits import EosTraits, declared
from dllm.models.text.ids import Ids


class EndOfText:
    """Base of all policies. The loop calls ``cut`` once a turn, after the step's commits and before blocks close. A
    policy implements ``cut``; it keeps no state. ``resolved`` is called first, when the model's ids are known.
    """

    traits: EosTraits
    clashes: ClassVar[tuple[Clash, ...]] = ()  # what it does not go together with

    def __init_subclass__(cls) -> None:
        declared(cls, "EosTraits", "cut")

    def resolved(self, ids: Ids) -> EndOfText:
        """The policy with the model's ``ids`` in place of options that leave them open."""
        return self

    def needs(self) -> tuple[Need, ...]:
        """What must be scored for the policy, in every forward."""
        return ()

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        """The candidates [N] of a turn, cut or filled where a committed or predicted end of text asks for it. ``view``
        [N]: what the sampler saw, repeated for each candidate, with the blocks as they are now. ``step``: what it
        decided. ends: the ids that end a text, first the one that fills. full [N]: the current block is full, and
        closes in this turn unless it must have more forwards."""
        raise NotImplementedError

    def opened(self, candidates: Canvas, blocks: BlockState) -> Canvas:
        """The candidates [N] with what the policy writes into the ``blocks`` [N] that are open now. Called before the
        first forward and after every turn, if its traits say that it ``writes``."""
        return candidates


class AroundPolicy(EndOfText):
    """A policy around another one, which it calls first. ``eos=`` names the inner one."""

    traits = EosTraits(at_once=True, shrinks=True, fills=True)

    def __init__(self, inner: EndOfText, **traits: bool) -> None:
        self.inner, self.traits = inner, inner.traits.but(**traits)

    @property
    def name(self) -> str:
        return name_of(self.inner)

    def needs(self) -> tuple[Need, ...]:
        return self.inner.needs()

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        return self.inner.cut(candidates, view, step, ends, full)

    def opened(self, candidates: Canvas, blocks: BlockState) -> Canvas:
        return self.inner.opened(candidates, blocks)


def answer_ends(canvas: Canvas, ends: Iterable[int]) -> Tensor:
    """Committed end-of-text tokens that end the answer [B, L]: those after all given text. In infilling, an EOS in one
    gap does not end what is given after it."""
    return one_of(canvas.tokens, ends) & canvas.tail & ~canvas.masked


def after_first(canvas: Canvas, where: Tensor) -> tuple[Tensor, Tensor]:
    """Column after the first True of each row [B], and whether there is one [B]."""
    first = canvas.columns.expand_as(where).masked_fill(~where, where.shape[1]).amin(1)
    return first + 1, where.any(1)
