"""Keys and values of first columns that requests share, by pages of the model's attention.

A page is a run of columns that depend on nothing after them (``AttentionKind.page_ends``). It is found by a hash of the
page before it and of its own tokens; the first one's hash begins with the model and the tenant. Nothing else reaches
the keys of a column: positions count from a row's first token. Pages are copied in and out, so none is ever in use.

The hash and the order of eviction are those of vLLM (vllm/v1/core: kv_cache_utils.py, block_pool.py).
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.models.bundle import Model
from dllm.models.network.attention_order import AttentionKind
from dllm.models.network.memory import DeviceCopies, KeyValues

FIRST_SLOTS = 1024  # columns that a store has room for when it gets its first page; then it doubles


@dataclass(frozen=True)
class KnownPrefix:
    """The first columns of a row, computed before."""

    columns: int  # n, how many they are
    layers: Sequence[KeyValues]  # of each layer: rotated keys and values [n, H_kv, h]
    # what it took to compute them for this row alone, as ``Ledger.spent`` counts: queries, those that ran, pairs of a
    # query and a key, queries and keys, scored states
    spent: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Beginning:
    """What decides the keys of a row's first columns."""

    tokens: Sequence[int]  # of the row
    decided_columns: int  # that many first ones are decided
    start: int  # column where the answer begins
    tenant: str = ""  # pages are found by requests of the same tenant alone

    def pages(self, kind: AttentionKind, model: bytes) -> Iterator[tuple[bytes, int, int]]:
        """The hash, the first column and the end of each page."""
        tenant = self.tenant.encode()
        digest = hashlib.sha256(len(model).to_bytes(8) + model + tenant).digest()
        for begin, end in pairwise((0, *kind.page_ends(self.start, self.decided_columns))):
            digest = hashlib.sha256(digest + array("q", self.tokens[begin:end]).tobytes()).digest()
            yield digest, begin, end


class PageStore:
    """Pages of one model, in columns of one tensor for the keys and one for the values of each layer.

    model: what the weights are, and how they compute (``identity_of``). most: columns that it holds; the least recently
    used pages make room. A page was never used later than those before it, so the last one of a beginning goes first.
    """

    def __init__(self, kind: AttentionKind, model: bytes, most: int) -> None:
        self.kind, self.model, self.most = kind, model, most
        self.pages: OrderedDict[bytes, list[int]] = OrderedDict()  # slots of each, the least recently used first
        self.layers: list[KeyValues] = []  # of each layer: keys and values [slots, H_kv, h]
        self.free: list[int] = []  # slots that no page has
        self.slots = self.evicted = 0  # columns there is room for by now; pages that were dropped for others

    def __len__(self) -> int:
        """Columns that it holds."""
        return self.slots - len(self.free)

    def clear(self) -> None:
        """Forget all pages: the weights have changed."""
        self.pages.clear()
        self.free = list(range(self.slots))

    def find(self, beginning: Beginning) -> KnownPrefix | None:
        """The longest run of known pages that a row begins with, or None. Copies them."""
        names, slots = list[bytes](), list[int]()
        for name, _, _ in beginning.pages(self.kind, self.model):
            if name not in self.pages:
                break
            names.append(name)
            slots += self.pages[name]
        self._touch(names)
        if not names:
            return None
        at, copies = torch.tensor(slots), DeviceCopies()
        layers = [(keys[copies(at, keys.device)], values[copies(at, values.device)]) for keys, values in self.layers]
        return KnownPrefix(len(slots), layers)

    def missing(self, beginning: Beginning) -> bytes | None:
        """The name of the first page of a row that is not here; None: all are."""
        return next((name for name, *_ in beginning.pages(self.kind, self.model) if name not in self.pages), None)

    @torch.inference_mode()  # the pool may have been made in it, and then cannot be written to outside
    def add(self, beginning: Beginning, row: int, stores: Sequence[KeyValues | None], most: int | None = None) -> int:
        """Keep the pages of a ``row`` whose keys and values are in ``stores`` [B, H_kv, S, h] by column, as far as
        there is room. most: columns of them (None: all that are decided). Returns how many columns of it are here."""
        names, new, end_of_stored = list[bytes](), list[tuple[int, int]](), 0
        for name, begin, end in beginning.pages(self.kind, self.model):
            if most is not None and end > most:
                break
            names.append(name)
            if name not in self.pages:
                slots = self._room(end - begin, names)
                if slots is None:
                    names.pop()
                    break
                self.pages[name] = slots
                new += zip(range(begin, end), slots, strict=True)
            end_of_stored = end
        self._touch(names)
        self._copy(new, row, stores)
        return end_of_stored

    def _touch(self, names: Sequence[bytes]) -> None:
        """Note that pages of one beginning were used."""
        for name in reversed(names):
            self.pages.move_to_end(name)

    def _room(self, columns: int, names: Sequence[bytes]) -> list[int] | None:
        """Slots for that many columns; None: only the pages of these ``names`` could make room."""
        if len(self.free) < columns and self.slots < self.most:
            more = min(self.most, max(FIRST_SLOTS, 2 * self.slots, self.slots + columns))
            self.free += range(self.slots, more)
            self.slots = more
        while len(self.free) < columns:
            oldest = next(iter(self.pages), None)
            if oldest is None or oldest in names:
                return None
            self.free += self.pages.pop(oldest)
            self.evicted += 1
        slots, self.free = self.free[-columns:], self.free[:-columns]
        return slots

    def _copy(self, new: Sequence[tuple[int, int]], row: int, stores: Sequence[KeyValues | None]) -> None:
        """Copy columns of a row to slots."""
        if not new:
            return
        columns, slots = torch.tensor(new).unbind(1)
        layers: list[KeyValues] = [store for store in stores if store is not None]
        assert len(layers) == len(stores), "a row has been computed"
        if not self.layers:
            self.layers = [tuple(_blank(tensor) for tensor in pair) for pair in layers]  # type: ignore[misc]
        self.layers = [tuple(_with_room(tensor, self.slots) for tensor in pair) for pair in self.layers]  # type: ignore[misc]
        copies = DeviceCopies()
        for pool, store in zip(self.layers, layers, strict=True):
            for to, of in zip(pool, store, strict=True):
                to[copies(slots, to.device)] = of[row][:, copies(columns, of.device)].transpose(0, 1)


def _blank(store: Tensor) -> Tensor:
    """No slots for columns like those of ``store`` [B, H_kv, S, h]."""
    return store.new_empty(0, store.shape[1], store.shape[3])


def _with_room(pool: Tensor, slots: int) -> Tensor:
    """The pool [s, H_kv, h] with room for ``slots``."""
    return pool if len(pool) == slots else F.pad(pool, (0, 0, 0, 0, 0, slots - len(pool)))


def page_store(model: Model, most_bytes: float) -> PageStore | None:
    """A store of at most that many bytes; None where requests of the model share nothing: with full attention every row
    depends on all others, scaled rotations may turn by a row's length, and ranks hold parts of the heads."""
    config = model.config
    most = int(most_bytes // column_bytes(model))
    if not config.attention.page_ends(1, 1 << 20) or config.rotates_by_length or model.ranks.size > 1 or most < 1:
        return None
    return PageStore(config.attention, identity_of(model), most)


def column_bytes(model: Model) -> int:
    """Bytes of the keys and values of a column in all layers."""
    return model.config.column_numbers * model.transformer.dtype.itemsize


def identity_of(model: Model) -> bytes:
    """What decides the keys of a token besides those before it: weights, dtype, quantisation, adapter, kernels, and the
    description with the kind of attention, its block and the rotations."""
    parts = (
        model.path,
        model.transformer.dtype,
        model.quantize,
        model.quantize_head,
        model.activations,
        model.adapter,
        model.draft_adapter,
        model.kernels,
        model.config,
    )
    return repr(parts).encode()
