"""Compute nothing after the span that a sampler fills (the cut canvas of SlowFast, arXiv 2506.10848, as its code)."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from dllm.common.errors import Set
from dllm.contract import BlockState, ForwardPlan, State
from dllm.contract.canvas import Canvas
from dllm.contract.clash import Mismatch
from dllm.contract.traits import CacheTraits
from dllm.models.config import ModelConfig
from dllm.parts.cache.base import Cache, Session
from dllm.parts.cache.kept import Kept
from dllm.parts.cache.none import NoCache, NoCacheSession


class SpanCache(Cache):
    """As ``none``, but while the sampler goes on with a span that it has announced, columns after the span are neither
    computed nor attended to, decided ones included. Text that was given stays."""

    traits = CacheTraits(
        scores_all_at_open=True, heads="local", leads=True, bounded_shapes=True, bounds_late=True, full_on_open=False
    )
    clashes = (
        *Cache.clashes,
        Mismatch(
            lambda c: not c.does.spans,
            "{cache} cuts the canvas after a span that the sampler announces, and {sampler} announces none.",
            [Set("sampler", "slowfast")],
        ),
    )

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return SpanSession(NoCache(), canvas, config)

    def kept(self) -> tuple[Kept, ...]:
        return ()


class SpanSession(NoCacheSession):
    """Cuts rows off after what was announced, as long as some of that is masked."""

    narrows = True

    def plan(self, canvas: Canvas, blocks: BlockState, next_positions: Tensor, state: State) -> ForwardPlan:
        plan = super().plan(canvas, blocks, next_positions, state)
        announced, opens = next_positions > 0, blocks.forwards == 0
        cut = (announced & canvas.undecided).any(1) & ~opens
        end = (announced * (canvas.columns + 1)).amax(1)
        columns = plan.columns & ~(cut[:, None] & (canvas.columns >= end[:, None]) & ~canvas.given)
        return replace(plan, columns=columns, keys=columns)
