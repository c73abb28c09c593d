"""No cache: every forward computes every column."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dllm.blocks.base import Span
from dllm.cache.access import Access
from dllm.cache.base import Cache, Call, Plan, Session, computed
from dllm.cache.calls import rows_by_call
from dllm.canvas import Canvas, of, pack
from dllm.models.config import ModelConfig
from dllm.models.transformer import Fresh, block_causal
from dllm.record.cost import ForwardCost


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
        return Plan(widths=None if span.sizes is None else (len(canvas.columns),) * len(canvas.request))

    def begin(self, plan: Plan, candidates: Canvas, owner: Tensor | None) -> Sequence[Call]:
        length, valid = len(candidates.columns), candidates.valid
        self.rows = valid.sum(1, keepdim=True)
        if plan.shadows is not None:
            self.rows = self.rows + (plan.shadows < length).sum(1, keepdim=True)
        parts: list[tuple[Tensor | None, int]] = [(None, length)]
        if self.ragged and plan.widths is None:
            parts = rows_by_call(valid.sum(1).tolist(), valid.device)
        self.calls = [self._call(rows, width, plan.shadows, candidates) for rows, width in parts]
        self.length = length
        return self.calls

    def _call(self, rows: Tensor | None, width: int, shadows: Tensor | None, candidates: Canvas) -> Call:
        valid, length = of(candidates.valid, rows), len(candidates.columns)
        queries = pack(valid, candidates.columns, width) if self.ragged else None
        visible = None if queries is None else queries < length
        if shadows is not None:
            ordinary = candidates.columns.expand_as(valid) if queries is None else queries
            extra = of(shadows, rows)
            visible, queries = shadow_visibility(ordinary, extra, length), torch.cat([ordinary, extra], 1)
        if self.attention_block is not None:
            positions = of(candidates.positions, rows)
            if queries is not None:
                positions = positions.gather(1, queries.clamp(max=length - 1))
            visible = block_causal(positions, positions, self.attention_block, visible)
        return Call(rows, queries, visible=visible)

    def use(self, call: Call) -> None:
        super().use(call)
        self.visible = call.visible

    def count(self) -> ForwardCost:
        ran = computed(self.calls, len(self.rows), self.length, self.rows.device)
        return ForwardCost(self.rows, self.rows, torch.zeros_like(self.rows), ran)

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
