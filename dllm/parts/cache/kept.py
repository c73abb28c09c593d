"""What a cache keeps between forwards: declared as ``Kept`` by its policy, and owned by ``KeptTensors``.

How rows leave, join and follow one another, which memory is lent, what recordings know a session by and how much memory
a row takes: all of it follows from the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from math import prod
from typing import Literal, final

import torch
from torch import Tensor

from dllm.common.rowwise import T, each_tensor
from dllm.models.config import ModelConfig
from dllm.models.network.memory import Buffers, DeviceCopies, KeyValues
from dllm.parts.cache.pages import KnownPrefix

PER_PLACE = -1  # in a size: one entry for each column or slot


@dataclass(frozen=True)
class Kept:
    """A tensor [B, *size] that a session keeps of every layer."""

    name: str  # by which a session has it; ``keys`` and ``values`` are what layers attend to
    size: Callable[[ModelConfig, int], tuple[int, ...]]  # (description of the model, layer) -> what a row has there
    # ``PER_PLACE`` of the size are the columns of the canvas and one for padding, or the slots that the policy counts;
    # what is kept by row has none
    by: Literal["column", "slot", "row"] = "column"
    lent: bool = True  # its memory may come from outside, so that turns can be recorded
    compared: bool = False  # a forward compares it with what it then writes there: recordings put it back
    from_layer: int = 0  # layers before this one have none
    dtype: torch.dtype | None = None  # None: that of the model

    def shape(self, config: ModelConfig, layer: int, rows: int, places: int) -> tuple[int, ...]:
        """Of the tensor of a layer."""
        return rows, *(places if size == PER_PLACE else size for size in self.size(config, layer))

    def numbers(self, shape: Sequence[int]) -> int:
        """How many numbers of two bytes at least hold a tensor of that shape."""
        return prod(shape) if self.dtype is None else -(-prod(shape) * self.dtype.itemsize // 2)


def key_size(config: ModelConfig, layer: int) -> tuple[int, ...]:
    """Of the keys, or the values, that a layer has of a row."""
    heads, width = config.key_heads(layer)
    return heads, PER_PLACE, width


LAYER_KEYS, LAYER_VALUES = Kept("keys", key_size), Kept("values", key_size)


class KeptRows:
    """Rows of every layer by column [B, L + 1, ...]; the last one takes what padding writes."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.layers: dict[int, Tensor] = {}  # those that have run

    def put(self, layer: int, rows: Tensor, columns: Tensor | None, numbers: Tensor | None = None) -> Tensor:
        """Keep rows [B, n, ...] at their columns [B, n] (None: the first n), or those of the batch's rows ``numbers``
        at the first n. Returns all rows of the layer."""
        self.flat(layer, rows)
        if columns is None:
            self.layers[layer][slice(None) if numbers is None else numbers, : rows.shape[1]] = rows
        else:
            self.layers[layer][torch.arange(len(rows), device=rows.device)[:, None], columns] = rows
        return self.layers[layer]

    def flat(self, layer: int, like: Tensor) -> Tensor:
        """All rows of a layer [B (L + 1), ...], which its first use makes for rows like those [B, n, ...]."""
        if layer not in self.layers:
            self.layers[layer] = like.new_zeros(len(like), self.length + 1, *like.shape[2:])
        return self.layers[layer].flatten(0, 1)

    def places(self, columns: Tensor) -> Tensor:
        """Where the columns [B, n] of all rows are among those of a layer, flat [B n]. Made once for all layers it
        saves two operations in each."""
        return (columns + torch.arange(len(columns), device=columns.device)[:, None] * (self.length + 1)).flatten()

    def put_at(self, layer: int, rows: Tensor, places: Tensor) -> None:
        """As ``put``, at their ``places``."""
        self.flat(layer, rows).index_copy_(0, places, rows.flatten(0, 1))

    def at(self, layer: int, places: Tensor) -> Tensor:
        """The rows [B, n, ...] of a layer at their ``places``."""
        rows = self.layers[layer]
        return rows.flatten(0, 1).index_select(0, places).unflatten(0, (len(rows), -1))


@final
class KeptTensors:
    """All tensors that a session keeps of B rows of L columns. Each is made by the first forward, on its layer's
    device, or lent."""

    def __init__(
        self, declarations: Sequence[Kept], config: ModelConfig, rows: int, length: int, slots: int = 0
    ) -> None:
        self.config, self.rows, self.length, self.slots = config, rows, length, slots
        self.pair = tuple(entry for entry in declarations if entry.name in ("keys", "values"))
        self.other_tensors = tuple(entry for entry in declarations if entry not in self.pair)
        self.stores: list[KeyValues | None] = [None] * config.layers if self.pair else []  # keys and values, by layer
        self.besides = {declaration.name: KeptRows(length) for declaration in self.other_tensors}
        self.prefixes: list[tuple[int, KnownPrefix]] = []  # rows whose first columns are known, until they are written
        self.buffers: Buffers | None = None  # the lent memory
        self.buffer_name = 0  # what that memory, or memory of its own, is called on all ranks
        # what memory that is never lent is called on all ranks
        self.own_name = 0 if all(declaration.lent for declaration in declarations) else config.ranks.number()

    def __getitem__(self, name: str) -> KeptRows:
        """What is kept besides keys and values."""
        return self.besides[name]

    def _tensors(self) -> Iterator[tuple[Kept, int, Tensor]]:
        """Every tensor with its declaration and its layer."""
        for layer, store in enumerate(self.stores):
            for declaration, tensor in zip(self.pair, store or (), strict=False):
                yield declaration, layer, tensor
        for declaration in self.other_tensors:
            for layer, tensor in self.besides[declaration.name].layers.items():
                yield declaration, layer, tensor

    def _replace(self, tensors: Iterable[Tensor]) -> None:
        """Keep ``tensors`` in the places of those that there are."""
        source = iter(tensors)
        self.stores = [None if store is None else (next(source), next(source)) for store in self.stores]
        for rows in self.besides.values():
            rows.layers = {layer: next(source) for layer in rows.layers}

    def shape(self, declaration: Kept, layer: int) -> tuple[int, ...]:
        """Of a tensor for all rows, columns and slots."""
        places = self.length + 1 if declaration.by == "column" else self.slots
        return declaration.shape(self.config, layer, self.rows, places)

    def tensor(self, name: str, layer: int, like: Tensor) -> Tensor:
        """The tensor of a layer. Its first use makes it, on the device of ``like``."""
        layers = self.besides[name].layers
        if layer not in layers:
            declaration = next(entry for entry in self.other_tensors if entry.name == name)
            layers[layer] = like.new_zeros(self.shape(declaration, layer), dtype=declaration.dtype)
        return layers[layer]

    def select(self, rows: Tensor) -> None:
        """Let all rows but the given ones [b], ascending, leave."""
        places = {old: new for new, old in enumerate(rows.tolist())} if self.prefixes else {}
        self.prefixes = [(places[row], prefix) for row, prefix in self.prefixes if row in places]
        self.rows = len(rows)
        self._replace(move_up([tensor for *_, tensor in self._tensors()], rows))

    def join(self, fresh: KeptTensors) -> None:
        """Let rows that have kept nothing yet follow."""
        self.prefixes += [(self.rows + row, prefix) for row, prefix in fresh.prefixes]
        self.rows, self.length = self.rows + fresh.rows, max(self.length, fresh.length)
        self.slots, self.buffers = max(self.slots, fresh.slots), None
        self.make_room()
        for layer in range(len(self.stores) if self.stores and self.stores[0] else 0):
            self.write_prefixes(layer)

    def make_room(self) -> None:
        """Let every tensor have room for all rows, columns and slots; what is new holds zeros."""
        wide = [(tensor, self.shape(declaration, layer)) for declaration, layer, tensor in self._tensors()]
        if any(size < most for tensor, shape in wide for size, most in zip(tensor.shape, shape, strict=True)):
            self.buffer_name = self.config.ranks.number()  # what grows moves
            self._replace(with_room(tensor, shape) for tensor, shape in wide)
        for rows in self.besides.values():
            rows.length = self.length

    def follow(self, leaders: Sequence[int]) -> None:
        """Give each row what its leader keeps."""
        followers = [row for row, leader in enumerate(leaders) if row != leader]
        their_leaders = [leaders[row] for row in followers]
        for *_, tensor in self._tensors():
            tensor[followers] = tensor[their_leaders]

    def key(self) -> tuple[Hashable, ...]:
        """The shapes, and where the tensors are: by addresses, or by the names that all ranks give to memory."""
        addresses = tuple(tensor.data_ptr() for *_, tensor in self._tensors())
        places = addresses if self.config.ranks.size == 1 else (self.buffer_name, self.own_name)
        return self.rows, self.length, self.slots, *places

    def compared_tensors(self) -> list[Tensor]:
        """What a recording, which runs a turn more than once, puts back."""
        return [tensor for declaration, _, tensor in self._tensors() if declaration.compared]

    def apart(self) -> KeptTensors:
        """The same tensors in an object of its own."""
        same = copy(self)
        same.stores, same.buffers, same.besides = list(self.stores), None, dict[str, KeptRows]()
        for name, rows in self.besides.items():
            same.besides[name] = copy(rows)
            same.besides[name].layers = dict(rows.layers)
        return same

    def _lendable(self) -> list[tuple[Kept, int]]:
        """What may be lent, in its order: keys and values of each layer in turn, then each of the others."""
        layers, others_lent = range(self.config.layers), [entry for entry in self.other_tensors if entry.lent]
        pairs = [(entry, layer) for layer in layers for entry in self.pair]
        return pairs + [(entry, layer) for entry in others_lent for layer in layers[entry.from_layer :]]

    def missing_buffers(self) -> list[tuple[int, ...]] | None:
        """The shapes of what may be lent, if it is still missing."""
        lent = [self.besides[entry.name].layers for entry in self.other_tensors if entry.lent]
        if None not in self.stores and all(lent):
            return None
        shapes = [(entry, self.shape(entry, layer)) for entry, layer in self._lendable()]
        return [shape if entry.dtype is None else (entry.numbers(shape),) for entry, shape in shapes]

    def attach_buffers(self, buffers: Buffers) -> None:
        """Use buffers of these shapes, which may have served another decode."""
        self.buffers, self.buffer_name, self.stores = buffers, buffers.name, []
        pair = list[Tensor]()
        for (declaration, layer), tensor in zip(self._lendable(), buffers.tensors, strict=True):
            if declaration in self.pair:
                pair.append(tensor)
                continue
            if declaration.dtype is not None:
                shape = self.shape(declaration, layer)
                tensor = tensor.view(declaration.dtype)[: prod(shape)].view(shape)
            self.besides[declaration.name].layers[layer] = tensor
        self.stores = list(zip(pair[::2], pair[1::2], strict=True))
        for layer in range(len(self.stores)):
            self.write_prefixes(layer)

    def take_over(self, prefixes: Sequence[KnownPrefix | None]) -> None:
        """Begin with the ``prefixes`` [B] of the rows (None: nothing is computed), before a policy says what it
        remembers."""
        self.prefixes = [(row, prefix) for row, prefix in enumerate(prefixes) if prefix is not None]

    def write_prefixes(self, layer: int) -> None:
        """Write what is known of the rows to the keys and values of a layer, which are there now."""
        for row, prefix in self.prefixes:
            for store, columns in zip(self.stores[layer] or (), prefix.layers[layer], strict=True):
                store[row, :, : prefix.columns] = columns.transpose(0, 1)
        if layer == len(self.stores) - 1:
            self.prefixes = []


def move_up(tensors: T, rows: Tensor) -> T:
    """The given rows [b] at the front of the same tensors, so that CUDA graphs recorded on these still find them."""
    copies = DeviceCopies()

    def to_front(tensor: Tensor) -> Tensor:
        tensor[: len(rows)] = tensor[copies(rows, tensor.device)]
        return tensor[: len(rows)]

    return each_tensor(to_front, tensors)


def with_room(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor of at least that shape that begins with ``tensor``, and holds zeros elsewhere."""
    wide = tensor.new_zeros([max(size, most) for size, most in zip(tensor.shape, shape, strict=True)])
    wide[tuple(map(slice, tensor.shape))] = tensor
    return wide
