"""End a row at the block that ends its text, and fill the rest with end-of-text tokens (LocalLeap, dInfer)."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from dllm.common.errors import Set, in_choices
from dllm.contract import Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.clash import Clash
from dllm.contract.traits import EosTraits
from dllm.parts.eos.base import EndOfText, answer_ends


class FillAfterBlock(EndOfText):
    """when: which full block ends the text: one that holds ``any`` EOS (LocalLeap, dInfer), or one that is ``all`` EOS
    (FreeDave)."""

    traits = EosTraits(at_once=False, shrinks=False, fills=False)
    clashes = (
        Clash(
            lambda c: c.blocks.traits.slides,
            "{eos} ends a row when a block is full, but {blocks} has none that closes.",
            [Set("eos", name) for name in ("stop_at_eos", "stop_front", "truncate_at_eos", "none")],
        ),
    )

    def __init__(self, when: str = "any") -> None:
        in_choices("eos.when", when, ("any", "all"))
        self.when = when

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        if not view.blocks.shapes.any(full):  # in most turns
            return candidates
        is_end, inside = answer_ends(candidates, ends), view.blocks.in_block
        ended = (is_end & inside).any(1) if self.when == "any" else (is_end | ~inside).all(1)
        tail = candidates.undecided & (candidates.columns >= view.blocks.end[:, None]) & (full & ended)[:, None]
        tokens, masked = candidates.tokens.masked_fill(tail, ends[0]), candidates.masked.masked_fill(tail, False)
        return replace(candidates, tokens=tokens, masked=masked, shortened=candidates.shortened | tail.any(1))
