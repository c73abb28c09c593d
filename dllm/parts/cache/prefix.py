"""Compute the columns left of the block once per block (Fast-dLLM's prefix cache, arXiv 2505.22618)."""

from __future__ import annotations

from torch import Tensor

from dllm.parts.cache.blockwise import Blockwise
from dllm.parts.cache.buffer import CacheView


class Prefix(Blockwise):
    """The forward that opens a block is full, and the sampler commits from it too. The others compute everything from
    the block's first column on.

    query_left, warmup, refresh_interval, suffix_window and the like: see ``Blockwise``.
    """

    traits = Blockwise.traits.but(regions=frozenset({"block", "suffix", "ahead", "answer"}), soft=True)

    @property
    def name(self) -> str:
        return "streaming" if self.prunes else "prefix"

    def part(self, view: CacheView, begin: Tensor) -> Tensor:
        return view.canvas.columns >= begin

    def widest(self, length: int, low: int, width: int) -> int:
        return length - low
