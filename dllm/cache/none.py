"""No cache: every forward computes every column."""

from __future__ import annotations

from torch import Tensor

from dllm.blocks.base import Span
from dllm.cache.base import Cache, Plan, Session
from dllm.canvas import Canvas, pack
from dllm.models.config import ModelConfig
from dllm.models.transformer import Fresh, block_causal


class NoCache(Cache):
    """The reference that every policy is measured against."""

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return Everything(config.attention_block, ragged=shrinks or not bool(canvas.valid.all()))


class Everything(Fresh, Session):
    """Queries and keys are all valid columns. Padding and cut columns are not computed at all."""

    def __init__(self, attention_block: int | None, ragged: bool) -> None:
        super().__init__()
        self.attention_block, self.ragged = attention_block, ragged

    def plan(self, canvas: Canvas, span: Span, upcoming: Tensor | None) -> Plan:
        return Plan()

    def begin(self, plan: Plan, candidates: Canvas, owner: Tensor | None) -> Tensor | None:
        length = len(candidates.columns)
        queries = pack(candidates.valid, candidates.columns) if self.ragged else None
        real = None if queries is None else queries < length
        self.rows = candidates.valid.sum(1, keepdim=True)
        self.visible = real
        if self.attention_block is not None:
            positions = candidates.positions
            if queries is not None:
                positions = positions.gather(1, queries.clamp(max=length - 1))
            self.visible = block_causal(positions, positions, self.attention_block, real)
        return queries

    def count(self) -> Tensor:
        return self.rows

    def select(self, rows: Tensor) -> Session:
        return self
