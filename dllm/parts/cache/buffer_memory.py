"""What the layers of one call write to a session's buffers, and read from them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dllm.contract.canvas import packed
from dllm.models.network.attention import ALL
from dllm.models.network.memory import DeviceCopies, Exchanged, KeyValues, Memory, Projected, StaticMemory
from dllm.parts.cache.base import Session
from dllm.parts.cache.columns import gather_padded, gather_rows
from dllm.parts.cache.passes import Call, ForwardPass


class BufferMemory(Memory):
    """One call's access to what a session keeps. Subclass it to intercept what layers read and write."""

    def __init__(self, session: Session, forward: ForwardPass, call: Call) -> None:
        self.session, self.forward, self.call, self.copies = session, forward, call, DeviceCopies()
        self.lacking = session.kept
        self.accessed: tuple[Call | None, torch.device | None, StaticMemory] = None, None, StaticMemory(ALL)

    def exchange(self, layer: int, fresh: Projected, columns: Tensor | None) -> Exchanged:
        self._move_queries(columns)
        self.buffer(layer, fresh)
        return self._access(fresh.query.device).exchange(layer, fresh, columns)

    def attend(self, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        if self.reader is not None and self.reader.reads(layer):
            return super().attend(layer, fresh, columns)
        self._move_queries(columns)
        self.buffer(layer, fresh)
        return self._access(fresh.query.device).attend(layer, fresh, columns)

    def _move_queries(self, columns: Tensor | None) -> None:
        """Queries are kept at the ``columns`` that have come to this layer, if others did to the one before."""
        if self.widens and columns is not self.call.columns:
            self.call = replace(self.call, columns=columns, slots=columns)

    def going_on(self, hidden: Tensor, columns: Tensor, stays: Tensor) -> tuple[Tensor, Tensor]:
        """Those rows [B, m, D] and columns [B, m] (L: padding) of what enters a layer that ``stays`` [B, n] names."""
        length, places = self.session.length, torch.arange(columns.shape[1], device=columns.device)
        at = packed(stays & (columns < length), places)
        return gather_rows(hidden, at), gather_padded(columns, at, length)

    def access(self) -> StaticMemory:
        return self._access(self.forward.valid.device)

    def note(self, name: str, value: Tensor) -> None:
        """Remember what the call found out about its rows under ``name``."""
        notes, candidates = self.forward.notes, self.call.candidates
        before = notes.get(name, self.forward.remembered[name])
        value = value.to(before.device)
        notes[name] = value if candidates is None else before.index_copy(0, candidates, value)

    def buffer(self, layer: int, fresh: Projected) -> KeyValues:
        """The buffers that the call writes to. The first forward makes them; more scratch slots widen them."""
        session, key, drafts = self.session, fresh.key, self.call.drafts
        store, size = session.stores[layer], max(self.call.reach, session.length + 1)
        if drafts is not None:
            draft_buffers = blank(key, len(drafts.row), size)
            if store is not None and not self.forward.whole:
                row = self.copies(drafts.row, key.device)
                for new, old in zip(draft_buffers, store, strict=True):
                    new[:, :, : session.length] = old[row, :, : session.length]
            drafts.stores[layer] = draft_buffers
            return draft_buffers
        if store is None or store[0].shape[2] < size:
            wider = blank(key, session.rows, size)
            for new, old in zip(wider, store or (), strict=False):
                new[:, :, : old.shape[2]] = old
            session.stores[layer] = store = wider
            session.kept.write_prefixes(layer)
        return store

    def _access(self, device: torch.device) -> StaticMemory:
        """What a layer on ``device`` reads and writes."""
        call = self.call
        if call is self.accessed[0] and device == self.accessed[1]:  # as in the layer before
            return self.accessed[2]
        stores = self.session.stores if call.drafts is None else call.drafts.stores
        slots, rows = self.copies(call.slots, device), self.copies(call.buffers, device)
        access = StaticMemory(self.copies.of(call.visible, device), slots, call.reach, stores, rows, call.ranges)
        self.accessed = call, device, access
        return access


def blank(key: Tensor, rows: int, size: int) -> KeyValues:
    """Buffers [rows, H_kv, size, h] for keys like ``key`` [b, n, H_kv, h]. They hold zeros: even a masked NaN would
    spread."""
    keys, values = key.new_zeros(2, rows, key.shape[2], size, key.shape[3])
    return keys, values
