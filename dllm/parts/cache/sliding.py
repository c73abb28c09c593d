"""Compute a window that slides, and everything after that many commits (DSB's cache, arXiv 2602.05992)."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.errors import Set, in_range
from dllm.contract import ForwardPlan, State
from dllm.contract.canvas import Canvas
from dllm.contract.clash import Mismatch
from dllm.parts.cache.buffer import Buffered, CacheView


class SlidingCache(Buffered):
    """For ``blocks=sliding``. The first forward is full, and every one after ``refresh_interval`` commits since the
    last full one (None: as many as the window has masks). The others compute the window, the ``prefix_window`` columns
    before it or as many as it has moved by, and ``suffix_window`` columns after it: what has just been committed is
    computed once more when the window passes it.

    as_published: a shifted model's full forward commits the leftmost mask alone, as published (Dream).
    """

    traits = Buffered.traits.but(committed=True, bounded_shapes=True)
    clashes = (
        *Buffered.clashes,
        Mismatch(
            lambda c: not c.blocks.traits.slides,
            "{cache} follows a window, but {blocks} opens blocks.",
            [Set("blocks", "sliding")],
        ),
    )

    def __init__(
        self,
        prefix_window: int = 24,
        suffix_window: int = 0,
        refresh_interval: int | None = None,
        as_published: bool = False,
    ) -> None:
        in_range("cache.prefix_window", prefix_window, 0, advice="It counts columns.")
        in_range("cache.suffix_window", suffix_window, 0, advice="It counts columns.")
        in_range("cache.refresh_interval", refresh_interval, 1, advice="It counts commits; 1 is cache=none.")
        self.prefix_window, self.suffix_window = prefix_window, suffix_window
        self.refresh_interval, self.as_published = refresh_interval, as_published

    def state(self, canvas: Canvas) -> State:
        """commits [B]: since the last full forward, its own included. begin [B]: where the window of the last forward
        began."""
        return {"commits": torch.zeros_like(canvas.start), "begin": canvas.start}

    def plan(self, view: CacheView) -> ForwardPlan:
        canvas, blocks, state = view.canvas, view.blocks, view.state
        commits = state["commits"] + (view.masks & ~canvas.masked & canvas.valid).sum(1)
        full = (blocks.turn == 0) | (commits >= self.interval(view))
        shift = view.config.prediction_shift
        before = (blocks.begin - state["begin"]).clamp(min=max(self.prefix_window, shift))
        columns = canvas.columns >= (blocks.begin - before)[:, None]
        columns = full[:, None] | columns & (canvas.columns < (blocks.end + self.suffix_window)[:, None])
        forced = None
        if shift and self.as_published:
            open_ = canvas.undecided & blocks.in_block
            forced = open_ & (open_.cumsum(1) == 1) & full[:, None]
        state = {"commits": commits.masked_fill(full, 0), "begin": blocks.begin}
        return view.plan(columns, forced=forced, state=state)

    def interval(self, view: CacheView) -> Tensor:
        """Commits [B] from one full forward to the next."""
        length = view.blocks.params["block_length"]
        return length if self.refresh_interval is None else torch.full_like(length, self.refresh_interval)
