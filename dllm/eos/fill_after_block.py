"""End a row at the block that ends its text, and fill the rest with end-of-text tokens (LocalLeap, dInfer)."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from dllm.contract import Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.setting import Setting
from dllm.contract.traits import EosTraits
from dllm.eos.base import EndOfText, answer_ends
from dllm.errors import UserError, in_choices, name_of


class FillAfterBlock(EndOfText):
    """when: which full block ends the text: one that holds ``any`` EOS (LocalLeap, dInfer), or one that is ``all`` EOS
    (FreeDave)."""

    traits = EosTraits(at_once=False, shrinks=False, fills=False)

    def __init__(self, when: str = "any") -> None:
        in_choices("eos.when", when, ("any", "all"))
        self.when = when

    def check(self, setting: Setting) -> None:
        if setting.blocks.traits.slides:
            raise UserError(
                f"eos={name_of(self)} ends a row when a block is full, but blocks={name_of(setting.blocks)} has none "
                "that closes. Use eos=stop_at_eos, stop_front, truncate_at_eos or none."
            )

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        if not view.blocks.shapes.any(full):  # in most turns
            return candidates
        found, inside = answer_ends(candidates, ends), view.blocks.in_block
        ended = (found & inside).any(1) if self.when == "any" else (found | ~inside).all(1)
        rest = candidates.undecided & (candidates.columns >= view.blocks.end[:, None]) & (full & ended)[:, None]
        tokens, masked = candidates.tokens.masked_fill(rest, ends[0]), candidates.masked.masked_fill(rest, False)
        return replace(candidates, tokens=tokens, masked=masked, shortened=candidates.shortened | rest.any(1))
