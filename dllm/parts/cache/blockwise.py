"""What the caches by blocks share: a full forward when a block opens, then forwards over a part of the canvas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dllm.common.errors import in_range
from dllm.contract import ForwardPlan, State
from dllm.contract.canvas import Canvas
from dllm.contract.clash import Mismatch
from dllm.contract.shapes import HostView
from dllm.models.config import ModelConfig
from dllm.parts.cache.buffer import Buffered, CacheView
from dllm.parts.cache.suffix import MISSES_LEFT, Pruning


class Blockwise(Pruning, Buffered):
    """A subclass chooses the columns of a reuse forward, in ``part``.

    query_left matters for models that predict from the position before (Dream). With it a reuse forward starts one
    column earlier, and so predicts every position of the block. Without it (the published code) it does not predict the
    block's first position; the full forward commits exactly that one.

    warmup, refresh_interval: when else forwards are full (dInfer's vicinity refresh, arXiv 2510.08666). The first
    ``warmup`` forwards of a row keep nothing, so that the one after them is full, too. After a row's first block
    every ``refresh_interval``-th forward of the row is full, unless the one before was (None: no such forwards).

    suffix_window and the like: see ``Pruning``. A full forward computes all that is not left out.
    """

    traits = Buffered.traits.but(committed=True, branches=True, bounded_shapes=True, bounds_late=True)
    clashes = (
        *Pruning.clashes,
        Mismatch(
            lambda c: c.blocks.traits.slides,
            "{cache} computes everything when a block opens, but {blocks} opens one only, and moves it.",
        ),
        MISSES_LEFT,
    )

    def __init__(
        self, query_left: bool = True, warmup: int = 0, refresh_interval: int | None = None, **suffix: Any
    ) -> None:
        super().__init__(**suffix)
        in_range("cache.warmup", warmup, 0, advice="It counts forwards.")
        in_range("cache.refresh_interval", refresh_interval, 1, advice="It counts forwards; {null} is none.")
        self.query_left, self.warmup, self.refresh_interval = query_left, warmup, refresh_interval
        self.traits = self.traits.but(attends_all=not self.prunes)

    def left(self, config: ModelConfig) -> int:
        """Columns before the block that a reuse forward computes too."""
        return int(self.query_left and config.prediction_shift > 0)

    def part(self, view: CacheView, begin: Tensor) -> Tensor:
        """Columns [B, L] of a reuse forward that starts at column ``begin`` [B, 1]."""
        raise NotImplementedError

    def widest(self, length: int, low: int, width: int) -> int:
        """The most columns of ``length`` that ``part`` can have in any row, without the one that ``query_left`` adds.
        No block begins before column ``low``, and none is wider than ``width``."""
        raise NotImplementedError

    def max_queries(
        self, host_views: Sequence[HostView], length: int, width: int, config: ModelConfig
    ) -> tuple[int, ...]:
        most = self.widest(length, min(row.begin for row in host_views), width) + self.left(config)
        return tuple(length if row.opening or self._may_refresh(row) else min(length, most) for row in host_views)

    def _may_refresh(self, row: HostView) -> bool:
        """Whether a row's coming forward may be full though it opens no block: it has had ``forwards``, and one
        more in each turn that it did not wait in since."""
        interval, turns = self.refresh_interval, range(row.forwards, row.forwards + row.staleness + 1)
        return any(turn <= self.warmup > 0 or (interval is not None and turn % interval == 0) for turn in turns)

    def state(self, canvas: Canvas) -> State:
        """kept [B]: whether some forward of the row was kept. refreshed [B]: whether the last one was full, and kept.
        dropped [B, L]: the columns that are left out while this block is open."""
        none = torch.zeros_like(canvas.shortened)
        return {"kept": none, "refreshed": none, "dropped": canvas.no_positions}

    def plan(self, view: CacheView) -> ForwardPlan:
        canvas, blocks, shift = view.canvas, view.blocks, view.config.prediction_shift
        left, warm, full = self.left(view.config), blocks.turn < self.warmup, self.full(view)
        dropped = self.dropped(canvas, blocks, view.state["dropped"])
        columns = ((warm | full)[:, None] | self.part(view, blocks.begin[:, None] - left)) & ~dropped
        forced = None
        if shift and not left:
            open_ = canvas.undecided & blocks.in_block
            forced = open_ & (open_.cumsum(1) == 1) & (blocks.forwards == 0)[:, None]
        keys = self.keys(view, columns)
        state = {"kept": view.state["kept"] | full & ~warm, "refreshed": full & ~warm, "dropped": dropped}
        return view.plan(columns, forced=forced, keys=keys & ~dropped if self.prunes else keys, state=state)

    def full(self, view: CacheView) -> Tensor:
        """Rows [B] whose forward after the warm-up is full."""
        blocks, state = view.blocks, view.state
        full = (blocks.forwards == 0) | ~state["kept"]
        if self.refresh_interval is None:
            return full
        is_due = (blocks.turn % self.refresh_interval == 0) & (blocks.index > 0)
        return full | is_due & ~state["refreshed"]

    def keys(self, view: CacheView, columns: Tensor) -> Tensor:
        """Columns [B, L] that count as keys in the forward that computes ``columns`` [B, L]."""
        return view.canvas.valid
