"""Rows of Elastic-Cache that have drifted: what a forward finds out of them, and how they run again, whole, from the
layer after the drift on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from dllm.common.ranks import Ranks
from dllm.common.rowwise import select_or_all, update_rows
from dllm.contract import ForwardCost, ForwardPlan
from dllm.contract.canvas import Canvas, packed
from dllm.models.network.attention import Visible
from dllm.models.network.memory import AnyStack, Exchanged, Memory, Projected, Rerun, StaticMemory, summed
from dllm.parts.cache.buffer_memory import BufferMemory
from dllm.parts.cache.columns import gather_rows
from dllm.parts.cache.drift import attention_and_weights, attention_received, attention_similarity, by_layer
from dllm.parts.cache.kept import KeptRows
from dllm.parts.cache.passes import ForwardPass


@dataclass(frozen=True)
class Redo:
    """How rows run again in a recording, which serves others as well: layers below a row's bound change nothing."""

    rows: int  # how many rows do: those with the lowest bounds
    begin: int  # the first layer that they run


@dataclass
class Track:
    """What a forward finds out while the network runs, where the pass itself is fixed."""

    bound: Tensor  # [B] first layer that computes the whole canvas
    later: Tensor  # [B] the same of the next forward
    # ``bound``, as far as the host knows it by now; fixed shapes: one number that is as large as the largest
    bounds: Sequence[int]
    narrow: int = 0  # how many layers have run narrow
    redo: Redo | None = None  # how rows run again in a recording (None: each from its bound on)
    again: Tensor | None = None  # [b] which rows these are (None: all)
    # by layer, what the similarity of attention with the last one follows from
    products: list[list[Tensor]] = field(default_factory=list)
    similarities: list[Tensor] = field(default_factory=list)  # by our kernels: of each block of keys [B, k]
    window_attention: dict[int, Tensor] = field(default_factory=dict)  # by layer, [B, S] attention from the window

    def whole(self, layers: Tensor | int) -> Tensor:
        """Rows [B, 1] in which a layer computes the whole canvas, or of several layers [B, l]."""
        return self.bound[:, None] <= layers

    def ran(self, layers: Tensor) -> Tensor:
        """Rows [B, l] in which the ``layers`` [l] ran over the whole canvas."""
        if self.redo is None:
            return self.whole(layers)
        rows = torch.zeros_like(self.bound, dtype=torch.bool)
        rows = torch.ones_like(rows) if self.again is None else rows.index_fill(0, self.again, True)
        return rows[:, None] & (layers >= self.redo.begin)


@dataclass(frozen=True)
class DriftPass(ForwardPass):
    """A forward that reads attention to find out how far the cache has drifted."""

    decided: Tensor  # [B, L] columns that may be watched next
    columns: Tensor  # [L] 0 to L - 1
    probes: Tensor  # [B, w + r] columns whose attention is read: w of the window, then r watched ones (L: no column)
    window: Tensor  # [B, w] the first of them
    in_window: Tensor  # [B, w] which of these are columns
    has_padding: bool  # some may be none, as far as the host knows
    tracked: Tensor  # [B, r] the others
    mean: Tensor  # [B, r] weights of the watched ones that turn a sum into a mean
    key_counts: Tensor  # [B] keys of each row
    width: int  # columns that rows compute which reuse some
    reuses: bool  # some rows reuse some, as far as the host knows
    fixed: bool  # the host knows bounds of shapes alone
    layers: int  # of the network
    progress: Track  # what was read, layer after layer

    @staticmethod
    def of(forward: ForwardPass, plan: ForwardPlan, candidates: Canvas, first: int, layers: int) -> DriftPass:
        """The ``forward`` of a ``plan``, whose layers compute the whole canvas from the layer ``first`` on."""
        columns, bound, shapes, parts = candidates.columns, plan.state["later"], plan.shapes, parts_of_plan(plan)
        if shapes.most:
            *widths, near = shapes.most
            bounds, has_padding = [first if near else 0], True
        else:
            *counts, bounds = torch.stack([*(part.sum(1) for part in parts), bound]).tolist()
            widths, has_padding = list(map(max, counts)), min(counts[0]) < max(counts[0])
            near = max((count + 1 for count, begin in zip(counts[2], bounds, strict=True) if begin > 0), default=0)
        window, tracked, others = (packed(part, columns, width) for part, width in zip(parts, widths, strict=True))
        probes, (call,) = torch.cat([window, tracked], 1), forward.calls
        if call.columns is not None:  # first the columns whose attention is read, so that their weights need no copy
            call_columns = torch.cat([probes, others], 1)
            call = replace(call, columns=call_columns, slots=call_columns)
        real = tracked < len(columns)
        return DriftPass(
            **vars(replace(forward, calls=(call,))),
            decided=~candidates.undecided & candidates.valid,
            columns=columns,
            probes=probes,
            window=window,
            in_window=window < len(columns),
            has_padding=has_padding,
            tracked=tracked,
            mean=real / real.sum(1, keepdim=True).clamp(min=1),
            key_counts=forward.keys.sum(1),
            width=widths[0] + widths[1] + min(near, widths[2]),
            reuses=max(bounds) > 0,
            fixed=shapes.bounded,
            layers=layers,
            progress=Track(bound, torch.full_like(bound, first), bounds),
        )

    def similarity(self, first: int, end: int, axis: str, ranks: Ranks) -> Tensor:
        """How much attention resembles the last one in the layers ``first`` to ``end`` - 1, as parts [l, B, k] of a
        mean."""
        progress, home = self.progress, self.valid.device
        if progress.similarities:
            return by_layer(progress.similarities[first:end], home)
        sums = [by_layer(each, home) for each in zip(*progress.products[first:end], strict=True)]
        return attention_similarity(sums, self.key_counts, axis, ranks) * self.mean

    def cost(self, scored_rows: Tensor) -> ForwardCost:
        progress, layers = self.progress, torch.arange(self.layers, device=self.valid.device)
        valid, narrow = self.valid.sum(1, keepdim=True), self.queries.sum(1, keepdim=True)
        queries = torch.where(progress.whole(layers), valid, narrow)
        if self.whole:
            rows_run = torch.full_like(queries, len(self.columns))
        else:
            rows_run = progress.ran(layers) * self.calls[0].reach + (layers < progress.narrow) * self.width
        keys = self.key_counts[:, None].expand_as(queries)
        return ForwardCost(queries, keys, queries * (queries == valid), rows_run, scored_rows)


def parts_of_plan(plan: ForwardPlan) -> tuple[Tensor, Tensor, Tensor]:
    """The columns [B, L] of the window, those that are watched, and what is computed besides."""
    window, tracked = plan.state["window"] & plan.keys, plan.state["tracked"] & plan.keys
    return window, tracked, plan.columns & ~window & ~tracked


class WholeRows(Memory):
    """Runs the whole canvas of some rows, each from the layer on that the host knows of it. window_attention: by
    layer [B, S], replaced in place."""

    def __init__(self, first: BufferMemory, forward: DriftPass, window_attention: dict[int, Tensor]) -> None:
        self.first, self.session, self.forward = first, first.session, forward
        self.window_attention, self.ran = window_attention, False
        self.numbers, self.gathered = list[int](), -1
        # [b] in a recording, the first layer in which each row changes anything (None: all that it runs)
        self.bound: Tensor | None = None
        self.x = torch.empty(0)  # [b, S, D] what leaves the last layer that ran, of these rows

    def advance(self, layers: AnyStack, first: int, last: int) -> None:
        """Run the layers ``first`` to ``last`` - 1, of each row those from its bound on."""
        bounds = self.forward.progress.bounds
        for begin, end in pairwise([*sorted({max(bound, first) for bound in bounds if bound < last}), last]):
            numbers = [row for row, bound in enumerate(bounds) if bound <= begin]
            if numbers != self.numbers:
                self._take(numbers, begin)
            self._run(layers, begin, end)

    def redo(self, layers: AnyStack, redo: Redo) -> Tensor | None:
        """Run as many rows as a recording does, and return which ones."""
        session, bound = self.session, self.forward.progress.bound
        self.rerun = None if redo.rows == len(bound) else bound.argsort(stable=True)[: redo.rows]
        self.bound = select_or_all(bound, self.rerun)
        self.x = select_or_all(session.kept["inputs"].layers[redo.begin], self.rerun)[:, : self.first.call.reach]
        self._run(layers, redo.begin, session.config.layers)
        return self.rerun

    def _run(self, layers: AnyStack, begin: int, end: int) -> None:
        x, residual, _ = layers.of(self.rerun, self.first.call.reach)(self.x, None, self, begin, end)
        self.x, self.ran = summed(x, residual), True

    def final_rows(self, layers: AnyStack) -> Rerun:
        """What the rows have after the last layer."""
        first, reach, last = self.first, self.first.call.reach, self.session.config.layers
        hidden, columns = layers.final_rows(self.x, None, None)
        if first.call.visible.mask is not None or reach < self.session.length:
            valid = select_or_all(self.forward.valid[:, :reach], self.rerun)
            columns = torch.where(valid, self.forward.columns[:reach], self.session.length)
        counts = None if self.bound is None or len(self.bound) == 1 else self.bound < last
        return Rerun(self.rerun, hidden, columns, counts)

    def _take(self, numbers: list[int], layer: int) -> None:
        """Go on with the rows ``numbers``; some begin with this layer."""
        session, reach = self.session, self.first.call.reach
        store = session.kept["inputs"].layers[layer]
        if self.numbers:
            session.kept["inputs"].put(layer, self.x.to(store.device), None, self._rows_on(store.device))
        everyone = len(numbers) == session.rows
        self.rerun = None if everyone else session.row_numbers(numbers, self.forward.valid.device)
        self.x = select_or_all(store, self._rows_on(store.device))[:, :reach]
        self.numbers, self.gathered = numbers, layer

    def _rows_on(self, device: torch.device) -> Tensor | None:
        return self.first.copies(self.rerun, device)

    def _put(self, store: KeptRows, layer: int, rows: Tensor, bound: int) -> Tensor:
        """Keep rows [b, S, ...] of a layer. Where a row's bound is above ``bound``, what is kept stays, and is returned
        in their place."""
        numbers = self._rows_on(rows.device)
        if self.bound is not None:
            before = select_or_all(store.layers[layer], numbers)[:, : rows.shape[1]]
            rows = update_rows(self.bound <= bound, rows, before)
        store.put(layer, rows, None, numbers)
        return rows

    def enter(self, layer: int, hidden: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if layer > self.gathered:  # a row begins with what has entered its first layer
            hidden = self._put(self.session.kept["inputs"], layer, hidden, layer - 1)
        return hidden, columns

    def attend(self, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        first, session, forward = self.first, self.session, self.forward
        device, rows, window_attention = fresh.query.device, self._rows_on(fresh.query.device), self.window_attention
        query, keys, values, visible = self._exchange(layer, fresh)
        self._put(session.kept["queries"], layer, query, layer)
        window = select_or_all(first.copies(forward.window, device), rows)
        out, weights = attention_and_weights(query, keys, values, visible, gather_rows(query, window), fresh.tiled)
        real = select_or_all(first.copies(forward.in_window, device), rows) if forward.has_padding else None
        attention = attention_received(weights, real)
        if self.bound is not None and layer in window_attention:
            attention = update_rows(self.bound <= layer, attention, select_or_all(window_attention[layer], rows))
        window_attention[layer] = attention if rows is None else window_attention[layer].index_copy(0, rows, attention)
        return out

    def _exchange(self, layer: int, fresh: Projected) -> Exchanged:
        """Keep keys and values, as ``_put`` does, and return the queries and what they attend to."""
        first, rows, reach = self.first, self._rows_on(fresh.query.device), self.first.call.reach
        mask, part = first.copies(first.call.visible.mask, fresh.query.device), slice(None) if rows is None else rows
        stores = first.buffer(layer, fresh)
        old = None if self.bound is None else [tensor[part, :, :reach].clone() for tensor in stores]
        access = StaticMemory(Visible(select_or_all(mask, rows)), None, reach, self.session.stores, rows)
        query, *new, visible = access.exchange(layer, fresh, None)
        if old is not None and self.bound is not None:
            for store, tensor, before in zip(stores, new, old, strict=True):
                store[part, :, :reach] = update_rows(self.bound <= layer, tensor, before)
        return query, new[0], new[1], visible
