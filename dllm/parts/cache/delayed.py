"""Keep a finished block some forwards after it was finished, and refresh it now and then (d3LLM, arXiv 2601.07568).

The policy is that of hao-ai-lab/d3LLM@e5bfcac: generate_multi_block_kv_cache (LLaDA), _sample_multi_block_kv_cache
(Dream). Blocks may be open ahead of one that is not full (``blocks=ahead``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dllm.common.errors import Set, in_choices, in_range
from dllm.contract import ForwardPlan, State
from dllm.contract.canvas import Canvas
from dllm.contract.clash import USE_FIXED, Mismatch
from dllm.contract.shapes import HostView
from dllm.models.config import ModelConfig
from dllm.parts.cache.buffer import Buffered, CacheView


class Delayed(Buffered):
    """The columns of a row are kept up to some block, the prompt first. A block is kept ``delay`` forwards after the
    one in which all columns up to its end were found decided; the forward that keeps it, and those after it, compute
    what follows what was kept before. While a finished block waits, and in every ``refresh_interval``-th forward of the
    row (None: never), a forward computes everything.

    wait: a block's delay begins when it is finished (``each``; the published code for Dream), or when the block before
    it has been kept (``in_turn``; that for LLaDA). query_left: see ``Blockwise``.
    """

    traits = Buffered.traits.but(
        committed=True,
        bounded_shapes=True,
        full_on_open=False,
        bounds_late=True,
        regions=frozenset({"block", "suffix", "ahead"}),
        attends_all=True,
    )
    clashes = (
        *Buffered.clashes,
        Mismatch(
            lambda c: c.blocks.traits.slides or "block_length" not in c.blocks.per_request,
            "{cache} keeps blocks of one length, but {blocks} has none.",
            [USE_FIXED, Set("blocks", "ahead")],
        ),
    )

    def __init__(
        self, delay: int = 1, refresh_interval: int | None = None, wait: str = "in_turn", query_left: bool = True
    ) -> None:
        in_range("cache.delay", delay, 0, advice="It counts forwards.")
        in_range("cache.refresh_interval", refresh_interval, 1, advice="It counts forwards; {null} is none.")
        in_choices("cache.wait", wait, ("in_turn", "each"))
        self.delay, self.refresh_interval, self.wait, self.query_left = delay, refresh_interval, wait, query_left

    def state(self, canvas: Canvas) -> State:
        """kept_end [B]: the columns before it are kept. finished_in [B, L]: the forward of the row, from 1, in which a
        column's block was first seen decided (0: the prompt; -1: not yet)."""
        finished_in = torch.where(canvas.columns < canvas.start[:, None], 0, -1)
        return {"kept_end": torch.zeros_like(canvas.start), "finished_in": finished_in}

    def max_queries(
        self, host_views: Sequence[HostView], length: int, width: int, config: ModelConfig
    ) -> tuple[int, ...]:
        return (length,) * len(host_views)

    def plan(self, view: CacheView) -> ForwardPlan:
        canvas, blocks, end_before = view.canvas, view.blocks, view.state["kept_end"]
        number, columns = blocks.turn + 1, canvas.columns
        finished_in, kept_end = self._finished_in(view, number)
        waits = ((columns >= kept_end[:, None]) & (columns < blocks.begin[:, None]) & (finished_in >= 0)).any(1)
        is_due = waits if self.refresh_interval is None else waits | (number % self.refresh_interval == 0)
        full = (end_before == 0) | ((kept_end == end_before) & is_due)
        left = int(self.query_left and view.config.prediction_shift > 0)
        columns = full[:, None] | (columns >= (end_before - left)[:, None])
        return view.plan(columns, state={"kept_end": kept_end, "finished_in": finished_in})

    def _finished_in(self, view: CacheView, number: Tensor) -> tuple[Tensor, Tensor]:
        """When each column's block was found finished [B, L], this forward's ``number`` [B] included, and up to which
        column rows are kept from it on [B]."""
        columns, before = view.canvas.columns, view.state["finished_in"]
        finished = columns < view.blocks.begin[:, None]
        finished_in = torch.where(finished & (before < 0), number[:, None], before)
        kept_end = self._kept_end(view, finished_in, finished, number)
        if self.wait == "each" or self.delay == 0:
            return finished_in, kept_end
        # Of the blocks that were not found before, only the one after what is kept is read.
        limit = self._end(view, kept_end)
        finished_in = torch.where((before < 0) & (columns >= limit[:, None]), -1, finished_in)
        return finished_in, kept_end

    def _kept_end(self, view: CacheView, finished_in: Tensor, finished: Tensor, number: Tensor) -> Tensor:
        is_due = finished & (finished_in >= 0) & (number[:, None] - finished_in >= self.delay)
        return torch.maximum(view.state["kept_end"], ((view.canvas.columns + 1) * is_due).amax(1))

    def _end(self, view: CacheView, column: Tensor) -> Tensor:
        """The end [B] of the block that begins at ``column`` [B]; that of the prompt for a column before the grid."""
        grid, length = view.canvas.grid, view.blocks.params["block_length"]
        inside = grid + ((column - grid) // length + 1) * length
        return torch.where(column < view.canvas.start, view.canvas.start, inside)
