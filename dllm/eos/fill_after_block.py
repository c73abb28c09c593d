"""End a row at the block that ends its text, and fill the rest with end-of-text tokens (LocalLeap, dInfer)."""

from __future__ import annotations

from dataclasses import replace

from dllm.contract import Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.setting import Setting
from dllm.eos.base import EndOfText, answer_ends
from dllm.errors import UserError, in_choices, name_of


class FillAfterBlock(EndOfText):
    """when: which full block ends the text: one that holds ``any`` EOS (LocalLeap, dInfer), or one that is ``all`` EOS
    (FreeDave)."""

    at_once = shrinks = fills = False

    def __init__(self, when: str = "any") -> None:
        in_choices("eos.when", when, ("any", "all"))
        self.when = when

    def check(self, setting: Setting) -> None:
        if setting.blocks.slides:
            raise UserError(
                f"eos={name_of(self)} ends a row when a block is full, but blocks={name_of(setting.blocks)} has none "
                "that closes. Use eos=cut_open, stop_front, cut_canvas or keep."
            )

    def cut(self, candidates: Canvas, view: View, step: Step, eos_id: int) -> Canvas:
        waits = (candidates.undecided & view.blocks.in_block).any(1)
        if view.blocks.shapes.all(waits):  # in most turns no block is full
            return candidates
        rest, full = candidates.undecided & ~view.blocks.in_block, ~waits & ~view.blocks.done
        if step.edit is not None:  # an end of text in a block that stays open may be replaced
            full = full & ~step.owner.per_candidate(step.keep_open)
        ends = answer_ends(candidates, eos_id)
        ended = (ends & view.blocks.in_block).any(1) if self.when == "any" else (ends | ~view.blocks.in_block).all(1)
        rest = rest & (candidates.columns >= view.blocks.end[:, None]) & (full & ended)[:, None]
        filled = candidates.commit(rest, candidates.tokens.masked_fill(rest, eos_id))
        return replace(filled, shortened=filled.shortened | rest.any(1))
