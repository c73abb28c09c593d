"""End a row at the block that ends its text: the rest becomes end-of-text without another forward."""

from __future__ import annotations

from dataclasses import replace

from dllm.blocks.base import Span
from dllm.canvas import Canvas
from dllm.eos.base import EndOfText, answer_ends
from dllm.errors import UserError
from dllm.samplers.base import Step
from dllm.scores import Scores


class FillAfterBlock(EndOfText):
    """``any``: a full block that holds an EOS (LocalLeap, dInfer); ``all``: nothing but EOS (FreeDave)."""

    def __init__(self, when: str = "any") -> None:
        if when not in ("any", "all"):
            raise UserError(f"eos.when={when!r} must be any or all.")
        self.when = when

    def cut(self, candidates: Canvas, scores: Scores, step: Step, span: Span, eos_id: int) -> Canvas:
        waits = (candidates.undecided & span.block).any(1)
        if span.sizes is None and bool(waits.all()):  # the usual turn: no block is full
            return candidates
        rest, full = candidates.undecided & ~span.block, ~waits & ~span.done
        ends = answer_ends(candidates, eos_id)
        ended = (ends & span.block).any(1) if self.when == "any" else (ends | ~span.block).all(1)
        rest = rest & (candidates.columns >= span.end[:, None]) & (full & ended)[:, None]
        filled = candidates.commit(rest, candidates.tokens.masked_fill(rest, eos_id))
        return replace(filled, cut=filled.cut | rest.any(1))
