"""The contract of an end-of-text policy: what happens to a row that has committed an end-of-text token."""

from __future__ import annotations

from torch import Tensor

from dllm.contract import Need, Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.setting import Setting
from dllm.models.ids import Ids


class EndOfText:
    """Base of all policies. The loop calls ``cut`` once a turn, after the step's commits and before blocks close. A
    policy implements ``cut``; it keeps no state. Order of calls: ``resolved`` when the model's ids are known, ``check``
    before weights are read, then ``cut``.

    A policy that says nothing counts as one that may do most. at_once: it acts on tokens of a block that is still open,
    which an editing rule may replace, so no such rule goes with it. shrinks: it may cut columns off the canvas, so no
    cache rests on all of them. fills: it decides open positions of a row that goes on, so no rule that
    drafts whole turns goes with it: the drafts know nothing of it. asks: it asks the device,
    so a turn with it cannot be recorded.
    """

    at_once = shrinks = fills = True
    asks = False

    def resolved(self, ids: Ids) -> EndOfText:
        """The policy with the model's ``ids`` in place of options that leave them open."""
        return self

    def check(self, setting: Setting) -> None:
        """Refuse, with UserError, a setting in which the policy cannot work. Called before weights are read."""

    def needs(self) -> tuple[Need, ...]:
        """What must be scored for the policy, in every forward."""
        return ()

    def cut(self, candidates: Canvas, view: View, step: Step, eos_id: int) -> Canvas:
        """The candidates [N] of a turn, cut or filled where a committed or predicted ``eos_id`` asks for it. ``view``
        [N]: what the sampler saw, repeated for each candidate, with the blocks as they are now. ``step``: what it
        decided."""
        raise NotImplementedError


def answer_ends(canvas: Canvas, eos_id: int) -> Tensor:
    """Committed end-of-text tokens that end the answer [B, L]: those behind all given text. In infilling, an EOS in one
    gap does not end what is given after it."""
    ends = (canvas.tokens == eos_id) & ~canvas.masked & canvas.valid & ~canvas.given
    return ends & behind_given(canvas)


def behind_given(canvas: Canvas) -> Tensor:
    """The columns behind all given text [B, L]."""
    last = (canvas.columns * canvas.given).amax(1, keepdim=True)
    return (canvas.columns > last) | ~canvas.given.any(1, keepdim=True)


def after_first(canvas: Canvas, where: Tensor) -> tuple[Tensor, Tensor]:
    """Column after the first True of each row [B], and whether there is one [B]."""
    first = canvas.columns.expand_as(where).masked_fill(~where, where.shape[1]).amin(1)
    return first + 1, where.any(1)
