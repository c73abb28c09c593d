"""Open block after block, and close none: earlier ones stay open (the loops of RCR, arXiv 2508.13148, and Saber,
2510.18165)."""

from __future__ import annotations

from torch import Tensor

from dllm.contract import State
from dllm.contract.canvas import Canvas
from dllm.contract.clash import USE_FIXED, Clash
from dllm.parts.blocks.fixed import Fixed


class Growing(Fixed):
    """The block begins at the answer's start and grows by ``block_length`` columns whenever it is full, so a rule that
    takes tokens back may do so in every column up to its end. For other rules it is ``Fixed``."""

    clashes = (
        Clash(
            lambda c: c.attention.block is not None,
            "{blocks} goes back to earlier blocks, but a {attention.name:value} model never sees later ones from "
            "there.",
            [USE_FIXED],
        ),
    )

    def __init__(self, block_length: int = 32, min_forwards: int = 1) -> None:
        super().__init__(block_length, min_forwards)
        self.fixed_length = None

    def containing(
        self, canvas: Canvas, column: Tensor, number: Tensor, params: State
    ) -> tuple[Tensor, Tensor, Tensor]:
        _, end, index = super().containing(canvas, column, number, params)
        return canvas.start, end, index

    def widest(self, length: int) -> int:
        return length
