"""Decode blocks of given lengths, left to right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from dllm.common.errors import Refusal
from dllm.contract import State
from dllm.contract.canvas import Canvas
from dllm.contract.traits import BlocksTraits
from dllm.parts.blocks.base import Blocks


class Lengths(Blocks):
    """Blocks of ``lengths`` columns in order, counted from ``Canvas.grid``; the last length repeats."""

    traits = BlocksTraits(slides=False, rolls_back=False)

    def __init__(self, lengths: Sequence[int], min_forwards: int = 1) -> None:
        super().__init__(min_forwards)
        if not lengths or min(lengths) < 1:
            raise Refusal("{blocks.lengths} must name at least one length, each of 1 or more.", [list(lengths)])
        self.lengths = list(lengths)

    def containing(
        self, canvas: Canvas, column: Tensor, number: Tensor, params: State
    ) -> tuple[Tensor, Tensor, Tensor]:
        index, begin, length = self._block(column - canvas.grid)
        before, _, _ = self._block(canvas.start - canvas.grid)
        return canvas.grid + begin, canvas.grid + begin + length, index - before

    def widest(self, length: int) -> int:
        return min(length, max(self.lengths))

    def count(self, canvas: Canvas) -> Tensor:
        first, last = (self._block(edge - canvas.grid)[0] for edge in (canvas.start, canvas.end - 1))
        return last + 1 - first

    def _block(self, column: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Index, begin and length of the block that holds ``column`` [B]; columns are relative to the grid. The lengths
        stay numbers: a tensor of them would be copied to the device whenever a block opens."""
        index, begin, edge = torch.zeros_like(column), torch.zeros_like(column), 0
        length = torch.full_like(column, self.lengths[0])
        for this, following in pairwise([*self.lengths, self.lengths[-1]]):
            edge += this
            behind = column >= edge
            index, begin = index + behind, begin + this * behind
            length = torch.where(behind, following, length)
        further = (column - begin) // length  # 0 where the list reaches; after it the last length repeats
        return index + further, begin + further * length, length
