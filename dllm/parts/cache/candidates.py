"""Several candidates a row: their calls of the network, and what is kept of them.

In rows whose candidates compute everything, each candidate gets buffers of its own, and those of one are kept. In the
others, candidates share what they do not compute: they lie side by side in scratch slots of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dllm.common.rowwise import Owner, select, select_or_all
from dllm.contract.canvas import Canvas, packed
from dllm.models.network.attention import Visible
from dllm.models.network.memory import DeviceCopies, KeyValues
from dllm.parts.cache.passes import Call, CandidateBuffers, CandidatePacking, ForwardPass


def calls_of_candidates(
    forward: ForwardPass, candidates: Canvas, widths: Sequence[int], rows: int, layers: int,
    call_of: Callable[[Tensor | None, int], Call],
) -> list[Call]:  # fmt: skip
    """The calls of N candidates, several of some row. widths: how many columns each computes. rows: B.
    call_of: makes the call of some of them (None: all) from the width of the widest."""
    owner, calls = forward.owner, list[Call]()
    fresh = owner.any((forward.queries == forward.valid).all(1))
    for refreshing in (True, False):
        run = (fresh[owner.row] == refreshing).nonzero()[:, 0]
        if len(run) == 0:
            continue
        width = max(widths[number] for number in run.tolist())
        some_run = None if len(run) == len(owner.row) else run
        if refreshing:
            drafts = CandidateBuffers(select_or_all(owner.row, some_run), [None] * layers)
            calls.append(replace(call_of(some_run, width), drafts=drafts, buffers=None))
        else:
            columns = packed(select_or_all(forward.queries, some_run), candidates.columns, width)
            calls.append(call_side_by_side(forward, some_run, columns, rows))
    return calls


def call_side_by_side(forward: ForwardPass, candidates: Tensor | None, columns: Tensor, rows: int) -> Call:
    """A call in which the candidates of a row become one row of K n queries in scratch slots. A candidate's queries see
    each other, and the columns that are not computed."""
    own, place = select_or_all(forward.owner.row, candidates).unique(return_inverse=True)
    packing, n, length = CandidatePacking.of(Owner(place, len(own))), columns.shape[1], forward.keys.shape[1]
    count = packing.width * n
    slots = length + 1 + torch.arange(count, device=columns.device).expand(len(own), -1)
    number = torch.arange(packing.width, device=columns.device).repeat_interleave(n)
    frozen = select_or_all(forward.keys & ~forward.queries, candidates)[packing.candidates]
    visible = frozen.new_zeros(len(own), count, length + 1 + count)
    visible[:, :, :length] = frozen.repeat_interleave(n, 1)
    visible[:, :, length + 1 :] = (number[:, None] == number) & packing.pack(columns < length)[:, None, :]
    buffers = None if len(own) == rows else own
    return Call(candidates, columns, slots, Visible(visible), length + 1 + count, buffers, packing)


def keep_candidates(stores: list[KeyValues | None], forward: ForwardPass, chosen: Tensor) -> None:
    """Keep in ``stores``, of every layer, what the ``chosen`` [B] candidates computed."""
    copies, everyone = DeviceCopies(), torch.arange(len(forward.keys), device=chosen.device)
    for call in forward.calls:
        ran = select_or_all(everyone, call.candidates)
        place = torch.full_like(everyone, -1).scatter(0, ran, everyone[: len(ran)])  # among the call's candidates
        rows = (place[chosen] >= 0).nonzero()[:, 0]
        for layer, store in enumerate(stores):
            stores[layer] = _kept(store, call, layer, rows, place[chosen[rows]], copies)


def _kept(
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
    rows, at, columns, place = (copies(one, device) for one in (rows, at, call.columns, call.side_by_side.place))
    slots = call.reach - call.side_by_side.width * n + place[at, None] * n + torch.arange(n, device=device)
    for buffer in store:
        fresh = buffer.transpose(1, 2)[rows[:, None], slots]
        buffer.transpose(1, 2).index_put_((rows[:, None], columns[at]), fresh)
    return store
