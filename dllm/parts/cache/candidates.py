"""Several candidates a row: their calls of the network, and what is kept of them.

In rows whose candidates compute everything, each candidate is a row of its own, with buffers of its own, and those of
one are kept. In the others candidates share what they do not compute: they lie along the sequence, side by side in
scratch slots of one row, under a mask (FreeDave's tree attention, arXiv 2510.00294). No kept key is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.common.rowwise import Owner, select, select_or_all
from dllm.contract.canvas import Canvas, packed
from dllm.models.network.attention import AllOf, ByRank, MaskParts
from dllm.models.network.attention_order import AttentionOrder
from dllm.models.network.memory import DeviceCopies, KeyValues
from dllm.parts.cache.calls import row_groups
from dllm.parts.cache.passes import Call, CandidateBuffers, CandidatePacking, ForwardPass


@dataclass(frozen=True)
class SideBySide(MaskParts):
    """A query sees the keys that are kept for its candidate, and the candidate's queries."""

    key_columns: Tensor  # [b, K, L + 1] the columns of the buffers, and the slot for padding
    queries: Tensor  # [b, K n] which of them are columns

    @property
    def width(self) -> int:
        """n."""
        return self.queries.shape[1] // self.key_columns.shape[1]

    def mask(self, first: int, last: int) -> Tensor:
        candidate = torch.arange(self.queries.shape[1], device=self.queries.device) // self.width
        candidates = candidate[first:last]
        own = (candidates[:, None] == candidate) & self.queries[:, None]
        return torch.cat([self.key_columns[:, candidates], own], 2)

    def ranges(self, first: int, last: int) -> list[tuple[int, int]]:
        before, width = self.key_columns.shape[2], self.width
        return [(0, before), (before + first // width * width, before + -(-last // width) * width)]


@dataclass(frozen=True)
class CandidateCalls:
    """How a forward of N candidates runs, several of some row."""

    forward: ForwardPass  # what it computes; it has no calls yet
    candidates: Canvas  # [N] their canvases
    order: AttentionOrder | None  # [N, L] who sees whom; None: everybody sees everybody
    widths: Sequence[int]  # how many columns each computes
    layers: int  # of the network
    row_of: Callable[[Tensor | None, int], Call]  # the call of some candidates, each a row of its own width at most

    def calls(self, price: int, shared: Callable[[CandidateCalls, Tensor | None], Call]) -> list[Call]:
        """The calls, each of rows that have as many candidates. price: see ``row_groups``. shared: makes the call of
        some candidates (None: all) that do not compute everything."""
        forward, device = self.forward, self.forward.owner.row.device
        of_row = [list[int]() for _ in range(forward.owner.rows)]
        for number, row in enumerate(forward.owner.row.tolist()):
            of_row[row].append(number)
        fresh = forward.owner.any((forward.queries == forward.valid).all(1)).tolist()
        rows_by_count = dict[int, list[list[int]]]()  # candidates by row, those of rows that compute everything under 0
        for numbers, new in zip(of_row, fresh, strict=True):
            rows_by_count.setdefault(0 if new else len(numbers), []).append(numbers)
        calls = list[Call]()
        for count, rows in rows_by_count.items():
            parts = row_groups([self._width(numbers) for numbers in rows], price) if count else [range(len(rows))]
            for part in parts:
                some = [number for row in part for number in rows[row]]
                run = None if len(some) == len(forward.queries) else torch.tensor(some, device=device)
                calls.append(shared(self, run) if count else self.in_rows(run))
        return calls

    def in_rows(self, some: Tensor | None) -> Call:
        """A call in which each candidate is a row, with a copy of what is kept of its own."""
        drafts = CandidateBuffers(select_or_all(self.forward.owner.row, some), [None] * self.layers)
        return replace(self.row_of(some, self._width(some)), drafts=drafts, buffers=None)

    def side_by_side(self, some: Tensor | None) -> Call:
        """A call in which the candidates of a row become one row of K n queries in scratch slots. A candidate's queries
        see each other, and the columns that are not computed."""
        forward, length = self.forward, self.forward.keys.shape[1]
        rows, place = select_or_all(forward.owner.row, some).unique(return_inverse=True)
        packing = CandidatePacking.of(Owner(place, len(rows)))
        columns = packed(select_or_all(forward.queries, some), self.candidates.columns, self._width(some))
        count = packing.width * columns.shape[1]
        slots = length + 1 + torch.arange(count, device=columns.device).expand(len(rows), -1)
        columns_before = select_or_all(forward.keys & ~forward.queries, some)[packing.candidates]
        parts: MaskParts = SideBySide(F.pad(columns_before, (0, 1)), packing.pack(columns < length))
        if self.order is not None:
            parts = AllOf(parts, ranks(select_or_all(self.order, some), columns, packing))
        buffers = None if len(rows) == forward.owner.rows else rows
        return Call(some, columns, slots, parts.visible(count), length + 1 + count, buffers, packing)

    def _width(self, some: Tensor | Sequence[int] | None) -> int:
        numbers = some.tolist() if isinstance(some, Tensor) else some
        return max(self.widths if numbers is None else [self.widths[number] for number in numbers])


def ranks(order: AttentionOrder, columns: Tensor, packing: CandidatePacking) -> ByRank:
    """Who sees whom among candidates of this ``order`` [N, L], which compute ``columns`` [N, n]. What is kept is
    decided in all candidates of a row, so it has the same rank in all."""
    queries, rank_before = order.at(columns), F.pad(order.rank[packing.candidates[:, 0]], (0, 1))
    return ByRank(torch.cat([rank_before, packing.pack(queries.rank)], 1), packing.pack(queries.reach))


def keep_candidates(stores: list[KeyValues | None], forward: ForwardPass, candidates: Tensor) -> None:
    """Keep in ``stores``, of every layer, what these ``candidates`` [B] computed."""
    copies, everyone = DeviceCopies(), torch.arange(len(forward.keys), device=candidates.device)
    for call in forward.calls:
        ran = select_or_all(everyone, call.candidates)
        place = torch.full_like(everyone, -1).scatter(0, ran, everyone[: len(ran)])  # among the call's candidates
        rows = (place[candidates] >= 0).nonzero()[:, 0]
        for layer, store in enumerate(stores):
            stores[layer] = _with_candidates(store, call, layer, rows, place[candidates[rows]], copies)


def _with_candidates(
    store: KeyValues | None, call: Call, layer: int, rows: Tensor, at: Tensor, copies: DeviceCopies
) -> KeyValues | None:
    """The buffers of a layer with the call's candidates ``at`` [b] in ``rows`` [b]."""
    if call.drafts is not None:
        drafts = call.drafts.stores[layer]
        assert drafts is not None
        rows, at = copies(rows, drafts[0].device), copies(at, drafts[0].device)
        if store is None:
            return select(drafts, at)
        for buffer, draft in zip(store, drafts, strict=True):
            size = min(buffer.shape[2], draft.shape[2])
            buffer[rows, :, :size] = draft[at, :, :size]
        return store
    assert call.columns is not None and call.side_by_side is not None and store is not None
    n, device = call.columns.shape[1], store[0].device
    rows, at, columns, place = (copies(tensor, device) for tensor in (rows, at, call.columns, call.side_by_side.place))
    slots = call.reach - call.side_by_side.width * n + place[at, None] * n + torch.arange(n, device=device)
    for buffer in store:
        fresh = buffer.transpose(1, 2)[rows[:, None], slots]
        buffer.transpose(1, 2).index_put_((rows[:, None], columns[at]), fresh)
    return store
