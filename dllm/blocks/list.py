"""Blocks of given lengths, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dllm.blocks.base import Blocks
from dllm.canvas import Canvas
from dllm.errors import UserError


class ListBlocks(Blocks):
    """``lengths`` in order from the grid's origin; the last length repeats for whatever is left."""

    def __init__(self, lengths: Sequence[int], min_forwards: int = 1) -> None:
        super().__init__(min_forwards)
        if not lengths or min(lengths) < 1:
            raise UserError(f"blocks.lengths={list(lengths)} must name at least one length, each of 1 or more.")
        self.lengths = list(lengths)

    def _edges(self, columns: int, device: torch.device) -> Tensor:
        """Block ends relative to the grid, far enough to cover ``columns``."""
        missing = max(0, columns - sum(self.lengths))
        lengths = self.lengths + [self.lengths[-1]] * (-(-missing // self.lengths[-1]) + 1)
        return torch.tensor(lengths, device=device).cumsum(0)

    def containing(self, canvas: Canvas, column: Tensor, number: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        edges = self._edges(len(canvas.columns), column.device)
        index = torch.searchsorted(edges, column - canvas.grid, right=True).clamp(max=len(edges) - 1)
        end = edges[index]
        begin = torch.where(index > 0, edges[(index - 1).clamp(min=0)], 0)
        before = torch.searchsorted(edges, canvas.start - canvas.grid, right=True)
        return canvas.grid + begin, canvas.grid + end, index - before

    def count(self, canvas: Canvas) -> Tensor:
        edges = self._edges(len(canvas.columns), canvas.grid.device)
        last = torch.searchsorted(edges, canvas.end - canvas.grid - 1, right=True)
        return last + 1 - torch.searchsorted(edges, canvas.start - canvas.grid, right=True)
