"""The memory of a forward: what a cache is to the layers of the network.

A layer projects its rows, hands queries, keys and values to the memory, and attends to what the memory returns.
``NoCacheMemory`` keeps nothing. ``StaticMemory`` has shapes that do not change, and consists of tensors and numbers
only, so that forwards through it can be recorded, replayed and compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from dllm.common.kept_property import kept_property
from dllm.kernels.add_norm import KeepRows, add_norm
from dllm.kernels.rope_scatter import HeadNorms, rope_scatter, rotated
from dllm.models.network.attention import ALL, Visible, attend, attend_first
from dllm.models.network.rope import Angles

M = TypeVar("M", bound=Tensor | None)

# Projected rows of one layer and their columns [B, n] to what they attend to [B, n, H * h].
Attend = Callable[["Projected", "Tensor | None"], Tensor]


class AnyLayer(Protocol):
    """What a memory knows of a layer of the network (``Layer``): how it is called, and its steps, for a memory that
    computes only some of its rows."""

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        angles: Angles,
        columns: Tensor | None,
        attend: Attend,
        drafts: bool = False,
        keep: KeepRows | None = None,
    ) -> tuple[Tensor, Tensor]: ...

    def entered(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """The sum x + residual [B, n, D] (None: x), and what attention reads of it."""

    def projected(self, normal: Tensor, angles: Angles) -> Projected:
        """Queries, keys and values of what attention reads."""

    def values(self, normal: Tensor) -> Tensor:
        """The values [B, n, H_kv * h] alone."""

    def mixed(self, context: Tensor) -> Tensor:
        """What attention adds [B, n, D], from what its rows attended to."""

    def fed(self, hidden: Tensor) -> Tensor:
        """What the MLP adds [B, n, D] to the sum of x, residual and ``mixed``."""


class AnyStack(Protocol):
    """What a memory knows of the layers of a network in one call (``LayerStack``)."""

    def of(self, rows: Tensor | None, reach: int) -> AnyStack:
        """The same for some rows [b] of the call (None: all), and its first columns."""

    def __call__(
        self, x: Tensor, columns: Tensor | None, memory: Memory, first: int = 0, last: int | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What leaves layer ``last`` - 1 (None: the last one), as a sum x + residual, and its columns, from rows x
        [B, n, D] that enter layer ``first``."""

    def final_rows(self, x: Tensor, residual: Tensor | None, columns: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Hidden rows after the final norm, and their columns, of rows x + residual that leave the last layer."""


def summed(x: Tensor, residual: Tensor | None) -> Tensor:
    """x + residual (None: x)."""
    return x if residual is None else x + residual


class Rerun(NamedTuple):
    """Rows of a call that ran once more, whose states replace those of the first run."""

    rows: Tensor | None  # [b] their numbers in the call (None: all)
    hidden: Tensor  # [b, n, D] their hidden states
    columns: Tensor | None  # [b, n] the columns of these (L: no column; None: all in order)
    counts: Tensor | None = None  # [b] which of the rows these replace (None: all)


# Rotated queries [B, n, H, h], keys and values [B, H_kv, S, h], and which keys are visible.
Exchanged = tuple[Tensor, Tensor, Tensor, Visible]


@dataclass(frozen=True)
class Projected:
    """A layer's projections of its rows, before norms and rotation."""

    query: Tensor  # [B, n, H, h]
    key: Tensor  # [B, n, H_kv, h]
    value: Tensor  # [B, n, H_kv, h]
    # cosine and sine [B, n, 1, dim] as ``rotated`` takes them; None: the rows are rotated
    angles: tuple[Tensor, Tensor] | None
    wide: bool  # rotate in float32 (LLaDA's ``rope_full_precision``) instead of the rows' dtype
    triton: bool  # rotate and store with our kernel
    varlen: bool = False  # attention can take counts of keys
    tiled: bool = False  # attention's numbers do not depend on the batch
    norms: HeadNorms | None = None  # of the heads of queries and keys; None: the model has none
    scale: float | None = None  # of the products of queries and keys; None: 1 / sqrt(h)
    windowed: bool = False  # the layer's keys lie in a window
    together: Tensor | None = None  # [B, n, H + H_kv, h] queries and keys, if one product made both

    @property
    def by_count(self) -> bool:
        """Whether attention takes the counts of keys, as they are."""
        return self.varlen and not self.tiled and not self.windowed and self.scale is None

    def rotated(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [B, n, H, h], rotated keys and values [B, H_kv, n, h]."""
        query, key, value = self.query, self.key, self.value.transpose(1, 2)
        if self.angles is None:
            return query, key.transpose(1, 2), value
        if self.triton and not torch.compiler.is_compiling():
            # One launch; as operations of PyTorch's it took 5.2 of the 29.3 ms of a forward of 1,024 tokens (8B, H200).
            keys, values = (torch.empty_like(value, memory_format=torch.contiguous_format) for _ in "kv")
            return self._stored(None, keys, values), keys, values
        if self.norms is not None:
            query = add_norm(query, None, self.norms.query, self.norms.eps, None, self.triton)[1]
            key = add_norm(key, None, self.norms.key, self.norms.eps, None, self.triton)[1]
        if self.together is not None and self.norms is None:  # half the operations
            both = rotated(self.together, *self.angles, self.wide)
            query, key = both.split_with_sizes([query.shape[2], key.shape[2]], 2)
        else:
            query, key = (rotated(x, *self.angles, self.wide) for x in (query, key))
        return query, key.transpose(1, 2), value

    def _stored(self, slots: Tensor | None, keys: Tensor, values: Tensor, queries: Tensor | None = None) -> Tensor:
        """``into`` by our kernel, for all rows."""
        assert self.angles is not None, "rows that are rotated already take another path"
        fresh, norms = (self.query, self.key, self.value, *self.angles), self.norms
        return rope_scatter(*fresh, slots, keys, values, self.wide, norms, queries, triton=True)

    def by_call(self, shapes: Sequence[tuple[int, int]]) -> list[Projected]:
        """The rows of a stream [1, T, ...] by the calls of ``shapes`` (b, n) that make it up, rotated together."""
        query, key, value = self.rotated()
        calls = (by_call(tensor, shapes) for tensor in (query, key.transpose(1, 2), value.transpose(1, 2)))
        return [
            replace(self, query=query, key=key, value=value, angles=None, norms=None, together=None)
            for query, key, value in zip(*calls, strict=True)
        ]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, visible: Visible) -> Tensor:
        """What rotated queries [B, n, H, h] of this layer attend to [B, n, H * h]."""
        visible_keys = visible.in_window() if self.windowed else visible
        return attend(query, keys, values, visible_keys, self.varlen, self.tiled, self.scale)

    def into(
        self,
        keys: Tensor,
        values: Tensor,
        slots: Tensor | None,
        rows: Tensor | None,
        row: Callable[[], Tensor],
        queries: Tensor | None = None,
    ) -> Tensor:
        """Write keys and values to ``slots`` [B, n] (None: the first n) of ``rows`` [B] (None: all) of the buffers
        [B, H_kv, S, h], and return the rotated queries. Every slot must exist: buffers have one for padding. row: gives
        the row of each slot [B, 1]. queries [B, Q, H, h]: keeps the rotated queries at the same slots (our kernel)."""
        # torch.compile fuses these operations itself. With ``rows`` the kernel does not run: that is rare.
        if self.triton and rows is None and self.angles is not None and not torch.compiler.is_compiling():
            return self._stored(slots, keys, values, queries)
        assert queries is None, "another path keeps none"
        query, key, value = self.rotated()
        at = None if slots is None else (row(), slots)
        for store, fresh in ((keys, key), (values, value)):
            if at is None:
                store[slice(None) if rows is None else rows, :, : fresh.shape[2]] = fresh
            else:  # 2 to 5 times as fast as a scatter on a CPU, and compiled without a copy of the buffer
                store.transpose(1, 2).index_put_(at, fresh.transpose(1, 2))
        return query


def by_call(stream: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Views [b, n, ...] of the parts of a stream [1, T, ...], T the sum of all b n."""
    parts = stream[0].split([rows * width for rows, width in shapes])
    return [part.unflatten(0, shape) for part, shape in zip(parts, shapes, strict=True)]


class AttentionReader(Protocol):
    """Reads along what the rows of some layers attend to (``dllm.loop.extras.capture``)."""

    def reads(self, layer: int) -> bool: ...

    def read(self, layer: int, query: Tensor, keys: Tensor, visible: Visible, columns: Tensor | None) -> None: ...


class Memory:
    """What a cache gives to the layers of one call of the network. For each layer: ``enter``, if a class has its own,
    then ``run``, which by default is the layer itself, with this memory's ``attend``. reader: who is shown the queries
    and keys of the layers that it reads (None: no reader)."""

    widens = False  # it has an ``enter`` of its own
    streams = True  # its call may run with others as one stream, layer by layer: layers run as they are
    lacking: LacksBuffers | None = None  # what may lack the buffers that the call writes to (None: nothing is kept)
    reader: AttentionReader | None = None
    usual: Hashable = None  # what ``rounded`` mostly gives
    rerun: Tensor | None = None  # [b] the rows of the call that run here (None: all)
    reruns: Sequence[Rerun] = ()  # results of rows that ran again, which replace what the network returned

    def __init_subclass__(cls) -> None:
        cls.widens = cls.enter is not Memory.enter
        cls.streams = not cls.widens and cls.through is Memory.through

    def through(self, layers: AnyStack, x: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Hidden rows after the last norm and their columns, from rows x [B, n, D] that enter the first layer."""
        return layers.final_rows(*layers(x, columns, self))

    def answer(self, facts: Sequence[Sequence[int]], report: Sequence[int] | None = None) -> Hashable:
        """What the host must know before the call goes on, after ``through``. It asks the device at most once, or takes
        what the rows have reported (``CacheTraits.facts``). report: the numbers of ``question``, if read."""
        return ()

    def question(self) -> Tensor | None:
        """The numbers [B] that ``answer`` reads, where a recorded turn need not wait for them: it goes on as if the
        answer were ``usual``, and goes on once more where it was not (None: it waits)."""
        return None

    def rounded(self, answer: Any) -> Hashable:
        """``answer``, rounded so that a recording of how a call goes on serves other calls too."""
        return answer

    def resume(self, answer: Any) -> None:
        """End the call by the host's ``answer``, or by what ``rounded`` makes of it."""

    def run(
        self, index: int, layer: AnyLayer, x: Tensor, residual: Tensor | None, angles: Angles, columns: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """What leaves the layer in place ``index``, as ``Layer.forward``. A memory that keeps more of the layers than
        keys and values computes fewer of its rows here."""
        return layer(x, residual, angles, columns, partial(self.attend, index))

    def enter(self, layer: int, hidden: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Hidden rows [B, n, D] entering a layer and their columns, or more of both (Elastic-Cache)."""
        raise NotImplementedError

    def exchange(self, layer: int, fresh: Projected, columns: Tensor | None) -> Exchanged:
        """Rotate and keep the fresh rows. Return their queries, and the keys and values they attend to."""
        raise NotImplementedError

    def attend(self, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        """Keep the fresh rows. Return what they attend to [B, n, H * h]."""
        query, keys, values, visible = self.exchange(layer, fresh, columns)
        self.show(layer, query, keys, visible, columns)
        return fresh.attend(query, keys, values, visible)

    def show(self, layer: int, query: Tensor, keys: Tensor, visible: Visible, columns: Tensor | None) -> None:
        """Let the reader see what ``exchange`` returned. An override of ``attend`` calls it."""
        if self.reader is not None and self.reader.reads(layer):
            self.reader.read(layer, query, keys, visible, columns)

    def access(self) -> StaticMemory:
        """All that the network reads and writes in this call besides its rows (static caches only)."""
        raise NotImplementedError


class DeviceCopies:
    """Copies of what the layers of one call share, made once for every device that has layers."""

    def __init__(self) -> None:
        self.copies: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}
        self.last: tuple[Visible | None, torch.device | None, Visible] = None, None, ALL

    def __call__(self, tensor: M, device: torch.device) -> M:
        """The tensor itself, or its copy on ``device``."""
        if tensor is None or tensor.device == device:
            return tensor
        key = id(tensor), device  # holding the tensor keeps its id
        if key not in self.copies:
            self.copies[key] = tensor, tensor.to(device)
        return self.copies[key][1]  # type: ignore[return-value]

    def of(self, visible: Visible, device: torch.device) -> Visible:
        """What is visible, on ``device``."""
        if visible is self.last[0] and device == self.last[1]:  # as in the layer before
            return self.last[2]
        moved = list[Tensor]()

        def there(tensor: Tensor) -> Tensor:
            copy = self(tensor, device)
            moved.extend([] if copy is tensor else [copy])
            return copy

        moved_visible = visible.with_tensors(there)
        self.last = visible, device, moved_visible if moved else visible
        return self.last[2]


class NoCacheMemory(Memory):
    """No cache: attend to those rows of this forward that are ``visible``."""

    def __init__(self, visible: Visible = ALL) -> None:
        self.visible, self.copies = visible, DeviceCopies()

    def exchange(self, layer: int, fresh: Projected, columns: Tensor | None) -> Exchanged:
        return *fresh.rotated(), self.copies.of(self.visible, fresh.query.device)

    def access(self) -> StaticMemory:
        return StaticMemory(self.visible)


KeyValues = tuple[Tensor, Tensor]  # of one layer: keys, values [B, H_kv, S, h]


@dataclass(frozen=True)
class StaticMemory(Memory):
    """Memory of a static forward: rows go to slots of buffers that keep their addresses."""

    visible: Visible  # no default: torch.compile of torch 2.11 wraps no object that is one
    slots: Tensor | None = None  # [b, n] where the rows go in the layers' ``stores``; None: the first n
    reach: int = 0  # how many slots count as keys
    stores: Sequence[KeyValues | None] = ()  # of each layer; without them nothing is kept, and the rows see each other
    rows: Tensor | None = None  # [b] which rows of the stores these are; None: all
    # the same rows as ranges of neighbours, where the host knows them: attention then reads their keys where they lie,
    # not a copy
    ranges: tuple[tuple[int, int], ...] | None = None

    @kept_property
    def row(self) -> Tensor:
        """The row of the stores [b, 1] that each slot is in. Made in every layer it took 8 us of a CPU."""
        assert self.slots is not None, "rows without slots are the first ones"
        rows = torch.arange(len(self.slots), device=self.slots.device) if self.rows is None else self.rows
        return rows[:, None]

    def into(self, layer: int, fresh: Projected, queries: Tensor | None = None) -> tuple[Tensor, KeyValues]:
        """Keep the fresh rows; returns their rotated queries, and the layer's store. queries: as of
        ``Projected.into``."""
        store = self.stores[layer]
        assert store is not None, "buffers are made before they are used"
        return fresh.into(*store, self.slots, self.rows, lambda: self.row, queries), store

    def exchange(self, layer: int, fresh: Projected, columns: Tensor | None) -> Exchanged:
        if not self.stores:
            return *fresh.rotated(), self.visible
        query, store = self.into(layer, fresh)
        part = slice(None) if self.rows is None else self.rows
        keys, values = (buffer[part, :, : self.reach] for buffer in store)
        return query, keys, values, self.visible

    def attend(self, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        in_place = fresh.by_count and self.rows is not None and self.visible.count is not None
        if self.ranges is None and not in_place:
            return super().attend(layer, fresh, columns)
        query, (keys, values) = self.into(layer, fresh)
        if self.ranges is None:
            return attend_first(query, keys[:, :, : self.reach], values[:, :, : self.reach], self.visible, self.rows)
        begin, out = 0, list[Tensor]()
        for first, last in self.ranges:
            rows = slice(begin, begin := begin + last - first)
            key, value = keys[first:last, :, : self.reach], values[first:last, :, : self.reach]
            out.append(fresh.attend(query[rows], key, value, self.visible.of(rows)))
        return torch.cat(out)


@dataclass(frozen=True, eq=False)
class Buffers:
    """Memory for the keys and values of every layer, and what else a session keeps. It is in use as long as a session
    refers to it."""

    tensors: Sequence[Tensor]  # of the shapes that were missing (``LacksBuffers.missing_buffers``)
    name: int = 0  # of the memory that they are in, for recordings


class LacksBuffers(Protocol):
    """What may be lent its memory (``dllm.parts.cache.kept.KeptTensors``)."""

    def missing_buffers(self) -> list[tuple[int, ...]] | None: ...

    def attach_buffers(self, buffers: Buffers) -> None: ...
