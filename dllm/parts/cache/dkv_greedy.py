"""Compute what was just committed, what comes next, and its neighbours (dKV-Cache-Greedy, arXiv 2505.15781)."""

from __future__ import annotations

from torch import Tensor

from dllm.common.errors import Set, in_range
from dllm.contract import ForwardPlan
from dllm.contract.clash import Mismatch
from dllm.parts.cache.buffer import Buffered, CacheView


class DKVGreedy(Buffered):
    """Every ``refresh_interval``-th forward of a block is full. The others compute the positions that the sampler has
    just committed, those that it will commit next, and the ``window`` nearest masks of each of the latter.

    It needs a sampler that announces its next positions (``order``), and a model without prediction shift.
    """

    traits = Buffered.traits.but(scores_all_at_open=True)
    clashes = (
        *Buffered.clashes,
        Mismatch(
            lambda c: not c.does.plans_ahead,
            "{cache} computes only what comes next, so {sampler} must know its order in advance.",
            [Set("sampler", "order")],
            at="cache",
        ),
        Mismatch(
            lambda c: c.blocks.traits.slides,
            "{cache} computes what was announced, but {blocks} moves its block after every turn, and then other "
            "positions are next.",
        ),
        Mismatch(
            lambda c: c.model.prediction_shift,
            "{cache} is not defined for models that predict from the position before (Dream).",
        ),
    )

    def __init__(self, refresh_interval: int = 2, window: int = 4) -> None:
        in_range("cache.refresh_interval", refresh_interval, 1, advice="1 is cache=none.")
        in_range("cache.window", window, 0, advice="0 computes no neighbours.")
        self.refresh_interval, self.window = refresh_interval, window

    def plan(self, view: CacheView) -> ForwardPlan:
        full, next_positions = view.blocks.forwards % self.refresh_interval == 0, view.next_positions
        columns = (view.masks & ~view.canvas.masked) | (next_positions > 0)
        if self.window:
            for row in (~full).nonzero()[:, 0].tolist():  # a loop: the searches of one row depend on each other
                columns[row] |= neighbours(next_positions[row], columns[row], view.masks[row], self.window)
        return view.plan(full[:, None] | columns)


def neighbours(next_positions: Tensor, columns: Tensor, was_masked: Tensor, window: int) -> Tensor:
    """``columns`` with, for each announced position in order, the ``window`` nearest masked columns not in it yet. The
    search alternates left, right, left, ..., one column at a time. All [L]."""
    columns, free = columns.clone(), (was_masked & ~columns).tolist()
    for column in next_positions.nonzero()[:, 0][next_positions[next_positions > 0].argsort()].tolist():
        count = 0
        for distance in range(1, len(free)):
            for at in (column - distance, column + distance):
                if count < window and 0 <= at < len(free) and free[at]:
                    free[at], count = False, count + 1
                    columns[at] = True
            if count == window:
                break
    return columns
