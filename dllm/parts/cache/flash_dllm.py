"""Compute the leftmost masks, new commits, and a budget of what masks attend to (Flash-dLLM, arXiv 2609.26796)."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.errors import Refusal, in_range
from dllm.common.ranking import top_k_mask
from dllm.common.rowwise import select_or_all
from dllm.contract import ForwardPlan, State
from dllm.contract.canvas import Canvas
from dllm.models.network.attention import attend
from dllm.models.network.experts import at_least_float32
from dllm.models.network.memory import Memory, Projected
from dllm.parts.cache.base import Session
from dllm.parts.cache.buffer import Buffered, CacheView, ColumnSession
from dllm.parts.cache.buffer_memory import BufferMemory
from dllm.parts.cache.columns import gather_padded, predictors
from dllm.parts.cache.passes import Call, ForwardPass

FIRST_LAYER = 2  # the layers before it say little about what matters


class FlashDLLM(Buffered):
    """The first forward is full. Each later one computes the leftmost masks, ``mask_windows`` windows of them, what was
    just committed, and with it as many decided positions as fill ``track_windows`` windows: those whose keys have the
    largest products with the queries of the leftmost window. Only the masks of the leftmost window, of
    ``window_length``, may be committed. Masks after an end of text count as masks.

    track_windows -1: every forward is full (no cache).
    """

    traits = Buffered.traits.but(
        shadows=False, attends_all=True, bounded_shapes=True, acts_in_layers=True, heads="summed"
    )

    def __init__(self, window_length: int = 16, mask_windows: int = 4, track_windows: int = 4) -> None:
        in_range("cache.window_length", window_length, 1)
        in_range("cache.mask_windows", mask_windows, 1)
        in_range("cache.track_windows", track_windows, -1, advice="-1 means no cache.")
        if track_windows == 0:
            raise Refusal(
                "{cache.track_windows=0} leaves no room for what was just committed, which would keep its mask's row "
                "for ever. Use at least 1, or -1 for no cache."
            )
        self.window_length, self.mask_windows, self.track_windows = window_length, mask_windows, track_windows

    def memory(self, session: ColumnSession, forward: ForwardPass, call: Call) -> Memory:
        return FlashMemory(session, forward, call)

    def state(self, canvas: Canvas) -> State:
        """window [B, L]: the columns that predict the last plan's window. importance [B, L]: of each column to it."""
        return {"window": canvas.no_positions, "importance": torch.zeros_like(canvas.masked, dtype=torch.float64)}

    def plan(self, view: CacheView) -> ForwardPlan:
        return self.around(view, view.masks & ~view.canvas.masked & view.canvas.valid)

    def around(self, view: CacheView, new: Tensor) -> ForwardPlan:
        """The plan that computes ``new`` [B, L] of the decided columns in any case."""
        canvas, masked = view.canvas, view.canvas.masked & view.canvas.valid
        place, budget = masked.cumsum(1), self.track_windows * self.window_length
        window = masked & (place <= self.window_length)
        near = masked & (place <= self.mask_windows * self.window_length)
        decided = canvas.valid & ~canvas.masked & ~new
        tracked = top_k_mask(view.state["importance"], decided, (budget - new.sum(1)).clamp(min=0))
        full = (view.blocks.turn == 0) | (self.track_windows < 0)
        columns = full[:, None] | near | predictors(near, canvas, view.config) | new | tracked
        state = {"window": predictors(window, canvas, view.config)}
        return view.plan(columns, committable=window & canvas.undecided, state=state)


class FlashMemory(BufferMemory):
    """Adds up, over the layers, the products of the window's queries with every key."""

    def __init__(self, session: Session, forward: ForwardPass, call: Call) -> None:
        super().__init__(session, forward, call)
        window = select_or_all(forward.remembered["window"], call.candidates)
        self.window = window if call.columns is None else gather_padded(window, call.columns, False)
        self.total = torch.zeros_like(select_or_all(forward.remembered["importance"], call.candidates))

    def attend(self, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        query, keys, values, visible = self.exchange(layer, fresh, columns)
        self.show(layer, query, keys, visible, columns)
        if layer >= FIRST_LAYER:
            self.total = self.total.to(query.device)
            self.total[:, : keys.shape[2]] += window_products(query, keys, self.copies(self.window, query.device))
        if layer == self.session.config.layers - 1:
            self.note("importance", self.session.config.ranks.sum(self.total))
        return attend(query, keys, values, visible, fresh.varlen, fresh.tiled)


def window_products(query: Tensor, keys: Tensor, window: Tensor) -> Tensor:
    """The sum [B, S] over heads and the rows of ``window`` [B, n] of raw products, of queries [B, n, H, h] with keys
    [B, H_kv, S, h]."""
    wide = at_least_float32(query.dtype)
    rows = torch.einsum("bn,bnhd->bhd", window.to(wide), query.to(wide))
    shared = rows.unflatten(1, (keys.shape[1], -1)).sum(2)  # query heads that share a key head
    return torch.matmul(keys.to(wide), shared.unsqueeze(-1)).squeeze(-1).sum(1).double()
