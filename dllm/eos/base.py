"""The contract of an end-of-text policy, and ``keep``, the policy that does nothing."""

from __future__ import annotations

from torch import Tensor

from dllm.blocks.base import Span
from dllm.canvas import Canvas
from dllm.samplers.base import Step
from dllm.scores import Need, Scores


class EndOfText:
    """``cut`` sees every turn's candidates after the commits. ``shrinks``: columns may leave the canvas."""

    shrinks = False

    def needs(self) -> tuple[Need, ...]:
        return ()

    def cut(self, candidates: Canvas, scores: Scores, step: Step, span: Span, eos_id: int) -> Canvas:
        """Candidates [N], with what they owe to an end of text. ``span`` is already each candidate's own."""
        return candidates


class Keep(EndOfText):
    """Decode the full length whatever is committed (LLaDA's and Dream's own loops); the text is cut afterwards."""


def answer_ends(canvas: Canvas, eos_id: int) -> Tensor:
    """Committed end-of-text tokens of the answer [B, L]: those behind all given text. In infilling, an EOS in one gap
    ends nothing that is given after it."""
    last = (canvas.columns * canvas.given).amax(1, keepdim=True)
    ends = (canvas.tokens == eos_id) & ~canvas.masked & canvas.valid & ~canvas.given
    return ends & ((canvas.columns > last) | ~canvas.given.any(1, keepdim=True))


def after_first(canvas: Canvas, where: Tensor) -> tuple[Tensor, Tensor]:
    """Column after the first True of each row [B], and whether there is one [B]."""
    first = canvas.columns.expand_as(where).masked_fill(~where, where.shape[1]).amin(1)
    return first + 1, where.any(1)
