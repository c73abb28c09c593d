"""Compute the columns on both sides of the open blocks once per block (Fast-dLLM's dual cache, arXiv 2505.22618)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dllm.cache.base import Cache, Session
from dllm.cache.blockwise import Blockwise, refuse_undoing
from dllm.canvas import Canvas
from dllm.common.rowwise import Owner
from dllm.contract import BlockState, ForwardPlan, Need, Rule
from dllm.models.config import ModelConfig
from dllm.setting import Setting
from dllm.shapes import Bounded


class Dual(Cache):
    """The forward that opens a block is full, and the sampler commits from it too. The others compute the open blocks.

    query_left: see ``Blockwise``; it matters for Dream only. keep_stale_tail: forwards attend to columns that an
    end-of-text policy cut until the next full forward (as published); otherwise they stop at once.
    """

    branches = static = opening = True

    def __init__(self, query_left: bool = True, keep_stale_tail: bool = False) -> None:
        self.query_left, self.keep_stale_tail = query_left, keep_stale_tail

    def check(self, setting: Setting, sampler: Rule, needs: Sequence[Need]) -> None:
        super().check(setting, sampler, needs)
        refuse_undoing(self.query_left, setting, sampler)

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return BlockOnly(canvas, config, self.query_left, shrinks, self.keep_stale_tail)


class BlockOnly(Blockwise):
    def __init__(
        self, canvas: Canvas, config: ModelConfig, query_left: bool, shrinks: bool, keep_stale_tail: bool
    ) -> None:
        super().__init__(canvas, config, query_left, shrinks)
        self.keep_stale_tail = keep_stale_tail

    def part(self, canvas: Canvas, blocks: BlockState, begin: Tensor) -> Tensor:
        return (canvas.columns >= begin) & (canvas.columns < blocks.open_end[:, None])

    def widest(self, known: Bounded) -> int:
        return known.width

    def keys(self, plan: ForwardPlan, candidates: Canvas, owner: Owner) -> Tensor:
        if not self.keep_stale_tail or not owner.is_single:
            return candidates.valid
        full = (plan.columns | ~candidates.valid).all(1, keepdim=True)
        return candidates.valid | (self.attended & ~full)
