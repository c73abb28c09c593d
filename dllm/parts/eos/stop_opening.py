"""Open no further block after an end of text (D2F, arXiv 2508.09192)."""

from __future__ import annotations

from torch import Tensor

from dllm.common.errors import Set
from dllm.contract import Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.clash import Clash
from dllm.contract.traits import EosTraits
from dllm.parts.eos.base import EndOfText, answer_ends


class StopOpening(EndOfText):
    """The first turn that commits an EOS cuts off what is after the last open block. Open blocks are decoded to their
    end, those after the EOS too."""

    traits = EosTraits(at_once=True, shrinks=True, fills=False)
    clashes = (
        Clash(
            lambda c: c.blocks.traits.slides,
            "{eos} ends a row with its open blocks, but {blocks} has one that moves on.",
            [Set("eos", name) for name in ("stop_at_eos", "truncate_at_eos", "none")],
        ),
    )

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        has_end, end = answer_ends(candidates, ends).any(1), view.blocks.open_end
        return candidates.stop_at(end, has_end & ~candidates.shortened & (end < candidates.end), attended=False)
