"""Compute the columns left of the block once per block (Fast-dLLM's prefix cache, arXiv 2505.22618)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dllm.cache.base import Cache, Session
from dllm.cache.blockwise import Blockwise, refuse_undoing
from dllm.canvas import Canvas
from dllm.contract import BlockState, Need, Rule
from dllm.models.config import ModelConfig
from dllm.setting import Setting
from dllm.shapes import Bounded


class Prefix(Cache):
    """The forward that opens a block is full, and the sampler commits from it too. The others compute everything from
    the block's first column on.

    query_left: see ``Blockwise``; it matters for Dream only.
    """

    regions = frozenset({"block", "suffix", "ahead", "answer"})
    branches = static = True

    def __init__(self, query_left: bool = True) -> None:
        self.query_left = query_left

    def check(self, setting: Setting, sampler: Rule, needs: Sequence[Need]) -> None:
        super().check(setting, sampler, needs)
        refuse_undoing(self.query_left, setting, sampler)

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return FromBlockOn(canvas, config, self.query_left, shrinks)


class FromBlockOn(Blockwise):
    def part(self, canvas: Canvas, blocks: BlockState, begin: Tensor) -> Tensor:
        return canvas.columns >= begin

    def widest(self, known: Bounded) -> int:
        return self.length - known.low
