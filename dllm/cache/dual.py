"""Compute the columns on both sides of the open blocks once per block (Fast-dLLM's dual cache, arXiv 2505.22618)."""

from __future__ import annotations

from torch import Tensor

from dllm.cache.blockwise import Blockwise
from dllm.cache.buffer import CacheView


class Dual(Blockwise):
    """The forward that opens a block is full, and the sampler commits from it too. The others compute the open blocks.

    query_left: see ``Blockwise``; it matters for Dream only. keep_stale_tail: forwards attend to columns that an
    end-of-text policy cut until the next full forward (as published); otherwise they stop at once.
    """

    opening = True

    def __init__(self, query_left: bool = True, keep_stale_tail: bool = False) -> None:
        super().__init__(query_left)
        self.keep_stale_tail = keep_stale_tail

    def part(self, view: CacheView, begin: Tensor) -> Tensor:
        return (view.canvas.columns >= begin) & (view.canvas.columns < view.blocks.open_end[:, None])

    def widest(self, length: int, low: int, width: int) -> int:
        return width

    def keys(self, view: CacheView, columns: Tensor) -> Tensor:
        valid = view.canvas.valid
        if not self.keep_stale_tail:
            return valid
        return valid | (view.attended & ~(columns | ~valid).all(1, keepdim=True))
