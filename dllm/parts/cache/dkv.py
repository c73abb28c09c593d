"""Cache a position one forward after the one that committed it (dKV-Cache-Decode, arXiv 2505.15781)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dllm.common.errors import in_choices, in_range
from dllm.contract import ForwardPlan
from dllm.contract.shapes import HostView
from dllm.models.config import ModelConfig
from dllm.parts.cache.buffer import Buffered, CacheView


class DKV(Buffered):
    """Every forward computes what was still masked one turn ago; every ``refresh_interval``-th forward is full.

    LLaDA counts forwards within a block, whose first two are full. Models that predict from the position before (Dream)
    count them over the whole row, and there ``shift_type`` says when position j stops being computed: un_right: once j
    and j + 1 are decided; un, as published: once j + 1 is, so that keys and values of a mask are kept for j.
    """

    traits = Buffered.traits.but(
        regions=frozenset({"block", "suffix", "ahead", "answer"}),
        bounded_shapes=True,
        bounds_late=True,
        bounds_by_masks=True,
    )

    def __init__(self, refresh_interval: int = 8, shift_type: str = "un_right") -> None:
        in_range("cache.refresh_interval", refresh_interval, 1, advice="1 is cache=none.")
        in_choices("cache.shift_type", shift_type, ("un_right", "un"))
        self.refresh_interval, self.shift_type = refresh_interval, shift_type

    def plan(self, view: CacheView) -> ForwardPlan:
        blocks = view.blocks
        if view.config.prediction_shift == 0:
            full = (blocks.forwards < 2) | (blocks.forwards % self.refresh_interval == 0)
            late = view.masks | view.canvas.masked  # a mask now, but none before: a commit was undone
            return view.plan(full[:, None] | late)
        full = blocks.turn % self.refresh_interval == 0
        return view.plan(full[:, None] | ~self.settled(view))

    def counts(self, view: CacheView) -> list[Tensor]:
        """Columns that no later forward exceeds unless it is full, since masks only get fewer, and the forwards by
        which full ones come, less the turns that the row still waits."""
        if view.config.prediction_shift:
            return self.shifted_counts(view)
        return [(self._late(view) & view.canvas.valid).sum(1), view.blocks.forwards - view.blocks.host_wait]

    def shifted_counts(self, view: CacheView) -> list[Tensor]:
        """The same of ``settled``, where forwards are counted over the whole row."""
        canvas, late = view.canvas, self._late(view)
        after = torch.cat([late[:, 1:], late[:, :1]], 1) | (canvas.columns == (canvas.initial_end - 1)[:, None])
        columns = after if self.shift_type == "un" else late | after
        return [(columns & canvas.valid).sum(1), view.blocks.turn - view.blocks.host_wait]

    def _late(self, view: CacheView) -> Tensor:
        """Columns [B, L] that count as masks in the forward after the coming one; a row that waits plans by older
        masks."""
        return view.canvas.masked | view.masks & (view.blocks.host_wait > 0)[:, None]

    def max_queries(
        self, host_views: Sequence[HostView], length: int, width: int, config: ModelConfig
    ) -> tuple[int, ...]:
        bounds, warm = list[int](), 1 if config.prediction_shift else 2
        for row in host_views:
            columns, forwards = row.counts[0], row.counts[1] + row.staleness
            full = forwards < warm or forwards % self.refresh_interval == 0
            bounds.append(length if full else min(length, columns))
        return tuple(bounds)

    def settled(self, view: CacheView) -> Tensor:
        """Columns [B, L] that a shifted model need not compute any more, by the masks of the last turn."""
        canvas = view.canvas
        decided = ~(view.masks | canvas.masked)
        after = torch.cat([decided[:, 1:], decided[:, :1]], 1)  # the last column takes position 0's value
        first = decided[:, :1]
        end = canvas.columns == (canvas.initial_end - 1)[:, None]
        has_begun = (view.blocks.turn > 1)[:, None]  # both types treat what is settled before the first commit alike
        un = torch.where(end, first & has_begun, after)
        if self.shift_type == "un":
            return un
        both = decided & after
        before = torch.cat([both[:, :1], both[:, :-1]], 1)
        return torch.where(has_begun, torch.where(end, before, both), un)
