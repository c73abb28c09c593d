"""What the layers of one forward read and write besides its rows, as plain tensors and numbers.

The memory of a cache whose shapes do not change is nothing more than this, so its forwards can be recorded, repeated
and compiled: whatever else a session holds stays outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dllm.models.transformer import Exchanged, Memory, Projected

Store = tuple[Tensor, Tensor]  # keys, values [B, H_kv, S, h]


@dataclass(frozen=True)
class Access(Memory):
    """visible: as in ``Exchanged``; slots [b, n]: where the rows go in the layers' ``stores`` (None: the first n);
    reach: how many slots count as keys. rows [b]: whose buffers these are, of all that there are (None: of all b).
    Without stores nothing is kept, and the rows see each other."""

    visible: Tensor | None = None
    slots: Tensor | None = None
    reach: int = 0
    stores: Sequence[Store | None] = ()
    rows: Tensor | None = None

    def enter(self, layer: int, hidden: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return hidden, columns

    def exchange(self, layer: int, fresh: Projected, columns: Tensor | None) -> Exchanged:
        if not self.stores:
            return *fresh.rotated(), self.visible
        store = self.stores[layer]
        assert store is not None, "buffers are made before they are used"
        query = fresh.into(*store, self.slots, self.rows)
        part = slice(None) if self.rows is None else self.rows
        keys, values = (buffer[part, :, : self.reach] for buffer in store)
        return query, keys, values, self.visible


@dataclass(frozen=True, eq=False)
class Room:
    """Buffers for the keys and values of every layer. Whoever holds it uses them; they are free when nobody does."""

    stores: Sequence[Store]
