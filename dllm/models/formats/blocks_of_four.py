"""Matrices that bitsandbytes has packed as NF4 and FP4, in blocks of one stream of numbers.

As its states write themselves (0.50, as_dict with packed=True). Beside a tensor ``W`` of bytes, the first number of a
byte in its high half, are ``W.quant_map`` [16], the table of its codes; ``W.absmax``, by which each block is
multiplied; and ``W.quant_state.bitsandbytes__nf4`` (fp4 likewise), bytes of a JSON with shape and size of blocks. A
block may cross rows. Double quantisation has the maxima as codes of ``W.nested_quant_map`` [256], in blocks of their
own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from dllm.common.coerce import is_whole
from dllm.common.errors import UserError
from dllm.models.formats.codes import looked_up
from dllm.models.formats.layouts import Module, check_tensor
from dllm.models.formats.packing import Packing, Part
from dllm.models.keys import REQUIRED, KeyRule, KeyRules, integer, printed, quote, read_keys
from dllm.models.weights.files import StoredTensor, broken

FOUR_BIT_STATE = r"(.+)\.quant_state\.bitsandbytes__\w+"
_LARGEST = 4096  # numbers of a block
_STORAGE = {"U8": 1, "I8": 1, "BF16": 2, "F16": 2, "F32": 4}  # bytes of what packed numbers are stored as
_CODES = 256  # of a maximum that is quantised itself
_STATE_KEYS: KeyRules = {
    "shape": KeyRule(
        "sizes",
        lambda value: isinstance(value, list) and len(value) > 1 and all(is_whole(size) and size > 0 for size in value),
        REQUIRED,
    ),
    "blocksize": integer(1, _LARGEST, REQUIRED),
    "nested_blocksize": integer(1, _LARGEST),
    "nested_offset": KeyRule("a number", lambda value: isinstance(value, float | int), 0.0),
}


@dataclass(frozen=True)
class NestedMaxima:
    """How maxima of blocks are quantised themselves."""

    maxima: StoredTensor  # nested_absmax, of blocks of them
    table: StoredTensor  # nested_quant_map
    block: int  # maxima
    offset: float  # added to each


@dataclass(frozen=True)
class BlocksOfFour(Packing):
    """A tensor of NF4 or FP4."""

    shape: tuple[int, ...]  # of the tensor
    block: int  # numbers that share a maximum
    weight: StoredTensor  # the codes
    maxima: StoredTensor  # absmax
    table: StoredTensor  # quant_map
    nested: NestedMaxima | None  # None: maxima are float32

    @property
    def bytes(self) -> int:
        nested = () if self.nested is None else (self.nested.maxima, self.nested.table)
        return sum(tensor.bytes for tensor in (self.weight, self.maxima, self.table, *nested))

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
        maxima, nested = part(self.maxima, slice(begin, end)), self.nested
        if nested is None:
            return maxima
        first = begin // nested.block
        scales = part(nested.maxima, slice(first, -(-end // nested.block)))
        block_scales = scales[torch.arange(begin, end) // nested.block - first]
        return part(nested.table)[maxima.long()] * block_scales + torch.tensor(nested.offset)


def blocks_of_four(module: Module, *_: Any) -> tuple[str, BlocksOfFour, tuple[int, ...]]:
    """What people call it, the operation and the shape. Raises UserError where tensors do not fit each other."""
    state = module.tensors.pop(module.sign)
    weight, maxima, table = map(module.need, ("", ".absmax", ".quant_map"))
    values = _state_values(state, module.part)
    shape, block, count = tuple(values["shape"]), values["blocksize"], prod(values["shape"])
    state_text, nested = f"its quant_state of {list(shape)} in blocks of {block}", None
    if weight.dtype not in _STORAGE:
        check_tensor(weight, weight.shape, _STORAGE, state_text)
    check_tensor(weight, (-(-count // 2) // _STORAGE[weight.dtype], 1), _STORAGE, state_text)
    check_tensor(table, (16,), ("F32",), state_text)
    blocks, outer_block = -(-count // block), values["nested_blocksize"]
    check_tensor(maxima, (blocks,), ("F32",) if outer_block is None else ("U8",), state_text)
    if outer_block is not None:
        outer, outer_table = map(module.need, (".nested_absmax", ".nested_quant_map"))
        check_tensor(outer, (-(-blocks // outer_block),), ("F32",), state_text)
        check_tensor(outer_table, (_CODES,), ("F32",), state_text)
        nested = NestedMaxima(outer, outer_table, outer_block, float(values["nested_offset"]))
    return module.sign.rpartition("__")[2].upper(), BlocksOfFour(shape, block, weight, maxima, table, nested), shape


def _state_values(state: StoredTensor, part: Part) -> Mapping[str, Any]:
    """What the state of a tensor says. Raises UserError for what no packer writes."""
    if state.dtype != "U8" or len(state.shape) != 1:
        raise broken(f"tensor {printed(state.name)} is {state.dtype} {list(state.shape)}, not a row of bytes")
    try:
        values = json.loads(bytes(part(state).tolist()))
    except ValueError as error:
        raise broken(f"tensor {printed(state.name)} is not the JSON of a state ({error})") from error
    if not isinstance(values, dict):
        raise broken(f"tensor {printed(state.name)} holds no object, which bitsandbytes does not write")

    def wrong(key: str, value: Any, _: str) -> UserError:
        return broken(f"tensor {printed(state.name)} has {key}={quote(value)}, which bitsandbytes does not write")

    return read_keys(_STATE_KEYS, values, "", wrong)
