"""Tensors of files, one after the other, in little memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from dllm.kernels.narrow_product import GROUP
from dllm.models.formats.packing import FourBits
from dllm.models.weights.files import StoredTensor
from dllm.models.weights.names import Source

# Bytes read of a file before its mapping is let go. Until then what was read counts as this process's memory: 9.9 GB of
# the 16.4 GB that loading LLaDA-8B took when all of it stayed mapped. Mapping again reads the header: milliseconds.
MAPPED = 1 << 28
ROW_MULTIPLE = 64  # rows: a multiple of what any packing keeps together
# Numbers that are unpacked at a time: 4 MB of float32, which stay in a cache. Of 32 MB pieces lay about in the heap,
# 0.9 GiB of them after a file of 8 billion weights.
UNPACKED = 1 << 20


class TensorReader:
    """Reads tensors by their published names. A context that lets its mapping go."""

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        self.tensors = tensors
        self.file: Path | None = None
        self.stack, self.since = ExitStack(), 0
        self.shard: Any = None

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.shard = None
        self.stack.close()

    def read(self, source: Source, dtype: torch.dtype, device: str = "cpu") -> Tensor:
        """A tensor, or a part of it, in memory of its own; a few rows are mapped, or unpacked, at a time."""
        tensor = self.tensors[source.name]
        begin, end = source.rows or (0, tensor.shape[0])
        out = torch.empty((end - begin, *source.shape_of_row(tensor.shape)), dtype=dtype, device=device)
        for first, last in self._pieces(tensor, begin, end):
            here = out[first - begin : last - begin]
            if tensor.packing is None:
                self._copy(here, tensor, slice(first, last), source)
            else:  # what packs numbers packs whole rows
                numbers = tensor.packing.numbers(self.part, first, last)
                numbers = numbers if source.columns is None else numbers[..., slice(*source.columns)]
                pieces = [numbers[:, slice(*piece)] for piece in source.pieces]
                here.copy_(torch.cat(pieces, 1) if pieces else numbers)
        return out

    def _copy(self, out: Tensor, tensor: StoredTensor, rows: slice, source: Source) -> None:
        """Rows of a tensor that is stored as it is: of its columns and pieces only what ``source`` names is read."""
        columns = [] if source.columns is None else [slice(*source.columns)]
        if not source.pieces:
            inner = [slice(None)] * (len(tensor.shape) - 2) if columns else []
            out.copy_(self.part(tensor, rows, *inner, *columns))
            return
        place = 0
        for begin, end in source.pieces:
            out[:, place : place + end - begin] = self.part(tensor, rows, slice(begin, end), *columns)
            place += end - begin

    def four_bits(self, source: Source) -> FourBits | None:
        """A matrix, or rows of it, on the sixteen steps that the file has it on; None: it has others."""
        tensor = self.tensors[source.name]
        if tensor.packing is None:
            return None
        begin, end = source.rows or (0, tensor.shape[0])
        columns = source.columns or (0, tensor.shape[-1])
        if any(end_of % GROUP for end_of in columns):
            return None
        steps, sizes = None, None
        for first, last in self._pieces(tensor, begin, end):
            if (piece := tensor.packing.four_bits(self.part, first, last)) is None:
                return None
            groups = slice(columns[0] // GROUP, columns[1] // GROUP)
            piece = FourBits(piece.steps[:, slice(*columns)], piece.sizes[:, groups])
            if steps is None or sizes is None:
                steps = piece.steps.new_empty(end - begin, *piece.steps.shape[1:])
                sizes = piece.sizes.new_empty(end - begin, *piece.sizes.shape[1:])
            steps[first - begin : last - begin], sizes[first - begin : last - begin] = piece.steps, piece.sizes
        return None if steps is None or sizes is None else FourBits(steps, sizes)

    def part(self, tensor: StoredTensor, *slices: slice) -> Tensor:
        """What slices of a tensor of safetensors name, mapped."""
        if tensor.file != self.file or self.since > MAPPED:
            self.stack.close()
            self.shard = self.stack.enter_context(safe_open(tensor.file, framework="pt"))
            self.file, self.since = tensor.file, 0
        if not tensor.shape:  # a single number has no slices
            return torch.as_tensor(self.shard.get_tensor(tensor.name))
        part: Tensor = self.shard.get_slice(tensor.name)[slices or slice(None)]
        self.since += part.nbytes
        return part

    def _pieces(self, tensor: StoredTensor, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Rows from and to, a few at a time."""
        step = max(1, (end - begin) * MAPPED // max(1, tensor.bytes))
        if tensor.packing is not None:
            multiple = ROW_MULTIPLE if len(tensor.shape) < 3 else 1  # a row of three sizes is a whole expert
            step = max(1, UNPACKED // max(multiple, multiple * prod(tensor.shape[1:]))) * multiple
        for first in range(begin, end, step):
            yield first, min(end, first + step)
