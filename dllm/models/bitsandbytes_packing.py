"""Matrices that bitsandbytes has packed: NF4 and FP4 in blocks of one stream of numbers, and int8 by rows.

As its states write themselves (0.50, as_dict with packed=True). Beside a tensor ``W`` of bytes, the first number of a
byte in its high half, are ``W.quant_map`` [16], the table of its codes; ``W.absmax``, by which each block is
multiplied; and ``W.quant_state.bitsandbytes__nf4`` (fp4 likewise), bytes of a JSON with shape and size of blocks. A
block may cross rows. Double quantisation has the maxima as codes of ``W.nested_quant_map`` [256], in blocks of their
own.

Eight bits: ``P.weight`` int8 [N, D] and ``P.SCB`` [N], w = q SCB / 127.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from dllm.common.coerce import is_whole
from dllm.models.codes import looked_up
from dllm.models.files import Contents, Stored, broken
from dllm.models.keys import printed, shown
from dllm.models.packing import Packing, Part
from dllm.models.prequantized import QUANTISATION
from dllm.models.scaled_packing import Scaled, check_tensor
from dllm.models.tensor_reader import TensorReader

_STATE = ".quant_state.bitsandbytes__"
_LARGEST = 4096  # numbers of a block
_STORAGE = {"U8": 1, "I8": 1, "BF16": 2, "F16": 2, "F32": 4}  # bytes of what packed numbers are stored as
_CODES = 256  # of a maximum that is quantised itself
_INT8_STEPS = 127.0  # from zero to the largest weight of a row


@dataclass(frozen=True)
class NestedMaxima:
    """How maxima of blocks are quantised themselves."""

    maxima: Stored  # nested_absmax, of blocks of them
    table: Stored  # nested_quant_map
    block: int  # maxima
    offset: float  # added to each


@dataclass(frozen=True)
class BlocksOfFour(Packing):
    """A tensor of NF4 or FP4."""

    shape: tuple[int, ...]  # of the tensor
    block: int  # numbers that share a maximum
    weight: Stored  # the codes
    maxima: Stored  # absmax
    table: Stored  # quant_map
    nested: NestedMaxima | None  # None: maxima are float32

    @property
    def bytes(self) -> int:
        nested = () if self.nested is None else (self.nested.maxima, self.nested.table)
        return sum(one.bytes for one in (self.weight, self.maxima, self.table, *nested))

    def numbers(self, part: Part, begin: int, end: int) -> Tensor:
        width = prod(self.shape[1:])
        first, last, size = begin * width, end * width, _STORAGE[self.weight.dtype]
        place = first // 2 // size
        data = part(self.weight, slice(place, -(-last // (2 * size)))).view(torch.uint8).flatten()
        values = looked_up(data, part(self.table), True)[first - 2 * size * place :][: last - first]
        start = first // self.block
        maxima = self._maxima(part, start, -(-last // self.block))
        values *= maxima[:, None].expand(-1, self.block).flatten()[first - start * self.block :][: last - first]
        if not values.sum().isfinite():
            raise broken(f"the maxima of tensor {printed(self.weight.name)} hold what is not a number")
        return values.view(-1, *self.shape[1:])

    def _maxima(self, part: Part, begin: int, end: int) -> Tensor:
        """Of blocks, float32 [n]."""
        found, nested = part(self.maxima, slice(begin, end)), self.nested
        if nested is None:
            return found
        first = begin // nested.block
        scales = part(nested.maxima, slice(first, -(-end // nested.block)))
        own = scales[torch.arange(begin, end) // nested.block - first]
        return part(nested.table)[found.long()] * own + torch.tensor(nested.offset)


def with_bitsandbytes(found: Contents) -> Contents:
    """The tensors of a folder with a weight in the place of those that make it up. Raises UserError where these do not
    fit each other."""
    tensors = dict(found.tensors)
    if not any(_STATE in name or name.endswith(".SCB") for name in tensors):
        note = f"{QUANTISATION} says bitsandbytes, and no tensor is packed: the weights are read as they are."
        return replace(found, notes=(*found.notes, note))
    with TensorReader({}) as reader:
        for name in [name for name in tensors if _STATE in name]:
            path, _, kind = name.rpartition(_STATE)
            packing = _four_bits(path, tensors, _said(tensors.pop(name), reader.part))
            tensors[path] = Stored(path, packing.weight.file, packing.shape, kind.upper(), packing)
        for name in [name for name in tensors if name.endswith(".SCB")]:
            path = name.removesuffix(".SCB")
            eight = _eight_bits(path, tensors, reader.part)
            tensors[f"{path}.weight"] = Stored(f"{path}.weight", eight.weight.file, eight.shape, "INT8", eight)
    return replace(found, tensors=tensors)


def _said(state: Stored, part: Part) -> Mapping[str, Any]:
    """What the state of a tensor says. Raises UserError for what no packer writes."""
    if state.dtype != "U8" or len(state.shape) != 1:
        raise broken(f"tensor {printed(state.name)} is {state.dtype} {list(state.shape)}, not a row of bytes")
    try:
        said = json.loads(bytes(part(state).tolist()))
    except ValueError as error:
        raise broken(f"tensor {printed(state.name)} is not the JSON of a state ({error})") from error
    rules = {
        "shape": lambda one: isinstance(one, list) and len(one) > 1 and all(is_whole(n) and n > 0 for n in one),
        "blocksize": lambda one: is_whole(one) and 1 <= one <= _LARGEST,
        "nested_blocksize": lambda one: one is None or (is_whole(one) and 1 <= one <= _LARGEST),
        "nested_offset": lambda one: one is None or isinstance(one, float | int),
    }  # fmt: skip
    for key, fits in rules.items():
        if not isinstance(said, dict) or not fits(said.get(key)):
            given = said.get(key) if isinstance(said, dict) else said
            raise broken(f"tensor {printed(state.name)} has {key}={shown(given)}, which bitsandbytes does not write")
    return dict(said)


def _four_bits(path: str, tensors: dict[str, Stored], said: Mapping[str, Any]) -> BlocksOfFour:
    weight, maxima, table = (_taken(tensors, path, leaf) for leaf in ("", ".absmax", ".quant_map"))
    shape, block, count = tuple(said["shape"]), said["blocksize"], prod(said["shape"])
    told, nested = f"its quant_state of {list(shape)} in blocks of {block}", None
    if weight.dtype not in _STORAGE:
        check_tensor(weight, weight.shape, _STORAGE, told)
    check_tensor(weight, (-(-count // 2) // _STORAGE[weight.dtype], 1), _STORAGE, told)
    check_tensor(table, (16,), ("F32",), told)
    blocks = -(-count // block)
    check_tensor(maxima, (blocks,), ("F32",) if said.get("nested_blocksize") is None else ("U8",), told)
    if said.get("nested_blocksize") is not None:
        outer, outer_table = (_taken(tensors, path, leaf) for leaf in (".nested_absmax", ".nested_quant_map"))
        check_tensor(outer, (-(-blocks // said["nested_blocksize"]),), ("F32",), told)
        check_tensor(outer_table, (_CODES,), ("F32",), told)
        nested = NestedMaxima(outer, outer_table, said["nested_blocksize"], float(said.get("nested_offset") or 0))
    return BlocksOfFour(shape, block, weight, maxima, table, nested)


def _eight_bits(path: str, tensors: dict[str, Stored], part: Part) -> Scaled:
    weight, scales = (_taken(tensors, path, leaf) for leaf in (".weight", ".SCB"))
    layout = tensors.pop(f"{path}.weight_format", None)
    if layout is not None and (prod(layout.shape) != 1 or int(part(layout).item()) != 0):
        raise broken(f"tensor {printed(layout.name)} tells another layout than rows, which no published folder has")
    if len(weight.shape) != 2:
        raise broken(f"tensor {printed(weight.name)} has shape {list(weight.shape)}, not two sizes")
    check_tensor(weight, weight.shape, ("I8",), "its SCB")
    check_tensor(scales, weight.shape[:1], ("F32",), f"a weight of {list(weight.shape)}")
    columns = weight.shape[1]
    return Scaled("int8", columns, weight, scales, (1, columns), steps_of_one=_INT8_STEPS)


def _taken(tensors: dict[str, Stored], path: str, leaf: str) -> Stored:
    """Takes a tensor out. Raises UserError where it is missing."""
    if (found := tensors.pop(f"{path}{leaf}", None)) is None:
        raise broken(f"tensor {printed(path)}{leaf} is missing beside the others of bitsandbytes")
    return found
