"""Compute the columns on both sides of the open blocks once per block (Fast-dLLM's dual cache, arXiv 2505.22618)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dllm.common.errors import in_range
from dllm.models.config import ModelConfig
from dllm.parts.cache.blockwise import Blockwise
from dllm.parts.cache.buffer import CacheView


class Dual(Blockwise):
    """The forward that opens a block is full, and the sampler commits from it too. The others compute the open blocks.

    query_left, warmup, refresh_interval, suffix_window and the like: see ``Blockwise``. prefix_look, after_look: so
    many columns before the open blocks and after them are computed with them, because they move most (dInfer's
    vicinity cache, arXiv 2510.08666). keep_stale_tail: forwards attend to columns that an end-of-text policy cut until
    the next full forward (as published); otherwise they stop at once.
    """

    traits = Blockwise.traits.but(scores_all_at_open=True, soft=True)

    def __init__(
        self, keep_stale_tail: bool = False, prefix_look: int = 0, after_look: int = 0, **options: Any
    ) -> None:
        super().__init__(**options)
        in_range("cache.prefix_look", prefix_look, 0, advice="It counts columns.")
        in_range("cache.after_look", after_look, 0, advice="It counts columns.")
        self.keep_stale_tail, self.prefix_look, self.after_look = keep_stale_tail, prefix_look, after_look

    @property
    def name(self) -> str:
        return "vicinity" if self.prefix_look or self.after_look or self.warmup else "dual"

    def left(self, config: ModelConfig) -> int:
        return max(super().left(config), self.prefix_look)

    def part(self, view: CacheView, begin: Tensor) -> Tensor:
        columns, end = view.canvas.columns, view.blocks.open_end[:, None]
        return (columns >= begin) & (columns < end + self.after_look)

    def widest(self, length: int, low: int, width: int) -> int:
        return width + self.after_look

    def keys(self, view: CacheView, columns: Tensor) -> Tensor:
        valid = view.canvas.valid
        if not self.keep_stale_tail:
            return valid
        return valid | (view.attended & ~(columns | ~valid).all(1, keepdim=True))
