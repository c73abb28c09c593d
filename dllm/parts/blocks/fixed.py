"""Decode blocks of one length, left to right (LLaDA's semi-autoregressive decoding, arXiv 2502.09992 section 2.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.errors import in_range
from dllm.contract import State
from dllm.contract.canvas import Canvas
from dllm.contract.traits import BlocksTraits
from dllm.parts.blocks.base import Blocks


class Fixed(Blocks):
    """Blocks of ``block_length`` columns, counted from ``Canvas.grid``; the last one may be shorter."""

    traits = BlocksTraits(slides=False, rolls_back=False, follows=True)

    per_request = ("block_length", "min_forwards")

    def __init__(self, block_length: int = 32, min_forwards: int = 1) -> None:
        super().__init__(min_forwards)
        in_range("blocks.block_length", block_length, 1)
        self.fixed_length = self.block_length = block_length

    def params(self, canvas: Canvas) -> State:
        params = super().params(canvas)
        return params | {"blocks_before": (canvas.start - canvas.grid) // params["block_length"]}

    def containing(
        self, canvas: Canvas, column: Tensor, number: Tensor, params: State
    ) -> tuple[Tensor, Tensor, Tensor]:
        length, index = params["block_length"], (column - canvas.grid) // params["block_length"]
        begin = torch.addcmul(canvas.grid, index, length)
        return begin, begin + length, index - params["blocks_before"]

    def widest(self, length: int) -> int:
        return min(length, self.block_length)

    def count(self, canvas: Canvas) -> Tensor:
        before = (canvas.start - canvas.grid) // self.block_length
        return -((canvas.grid - canvas.end) // self.block_length) - before
