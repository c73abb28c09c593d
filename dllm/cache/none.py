"""No cache: every forward computes every column."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.blocks.base import Span
from dllm.cache.access import Access
from dllm.cache.base import Cache, Plan, Session
from dllm.canvas import Canvas, pack
from dllm.cost import Work
from dllm.models.config import ModelConfig
from dllm.models.transformer import Fresh, block_causal


class NoCache(Cache):
    """The reference that every policy is measured against."""

    regions = frozenset({"block", "suffix", "ahead", "answer"})
    branches = block_causal = static = True

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return Everything(config.attention_block, ragged=shrinks or not bool(canvas.valid.all()))


class Everything(Fresh, Session):
    """Queries and keys are all valid columns. Padding and cut columns are not computed at all."""

    def __init__(self, attention_block: int | None, ragged: bool) -> None:
        super().__init__()
        self.attention_block, self.ragged = attention_block, ragged

    def plan(self, canvas: Canvas, span: Span, upcoming: Tensor | None) -> Plan:
        return Plan(width=None if span.sizes is None else len(canvas.columns))

    def begin(self, plan: Plan, candidates: Canvas, owner: Tensor | None) -> Tensor | None:
        length = len(candidates.columns)
        queries = pack(candidates.valid, candidates.columns, plan.width) if self.ragged else None
        self.rows = candidates.valid.sum(1, keepdim=True)
        if plan.shadows is not None:
            ordinary = candidates.columns.expand_as(candidates.tokens) if queries is None else queries
            self.rows = self.rows + (plan.shadows < length).sum(1, keepdim=True)
            self.visible = shadow_visibility(ordinary, plan.shadows, length)
            queries = torch.cat([ordinary, plan.shadows], 1)
        else:
            self.visible = None if queries is None else queries < length
        if self.attention_block is not None:
            positions = candidates.positions
            if queries is not None:
                positions = positions.gather(1, queries.clamp(max=length - 1))
            self.visible = block_causal(positions, positions, self.attention_block, self.visible)
        return queries

    def count(self) -> Work:
        return Work(self.rows, self.rows, torch.zeros_like(self.rows))

    def select(self, rows: Tensor) -> Session:
        return self

    def access(self) -> Access:
        return Access(self.visible)


def shadow_visibility(ordinary: Tensor, shadows: Tensor, length: int) -> Tensor:
    """Who sees whom [B, n + x, n + x]: all see the ordinary rows, a shadow not its own column, and itself."""
    rows = torch.cat([ordinary, shadows], 1)
    count = ordinary.shape[1]
    is_shadow = torch.arange(rows.shape[1], device=rows.device) >= count
    own = (rows[:, :, None] == rows[:, None, :]) & is_shadow[:, None]
    itself = torch.eye(rows.shape[1], dtype=torch.bool, device=rows.device)
    return ((rows < length)[:, None, :] & ~is_shadow & ~own) | (itself & is_shadow)
