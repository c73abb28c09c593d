"""Tensors of GGUF files: rows in the published order, in float32, or on the sixteen steps that four bits are.

What a type means is said by the package ``gguf`` (``quants.dequantize``), but for the steps of Q4_0, Q4_1 and Q4_K:

| type | numbers, bytes | weight |
|---|---|---|
| Q4_0 | 32, 18: d, then byte j holds numbers j (low) and 16 + j (high) | d (q - 8) |
| Q4_1 | 32, 20: d and m, then the same | d q + m |
| Q4_K | 256, 144: d, d', eight scales s and minima m of six bits in twelve bytes, then for each two groups of 32 a byte for number j of the first (low) and of the second (high) | d s q - d' m |
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dllm.common.errors import UserError
from dllm.kernels.narrow_product import GROUP
from dllm.models.formats.gguf_file import GgufTensor
from dllm.models.formats.packing import FourBits, Packing, Part

PLAIN_KINDS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
STEPPED_KINDS = {"Q4_0": 18, "Q4_1": 20, "Q4_K": 144}  # and the bytes of a block
_SIX_BITS = 63


@dataclass(frozen=True)
class GgufPacking(Packing):
    """A published tensor of N rows, in a tensor of a file."""

    tensor: GgufTensor  # of the file
    rows: int  # N
    first: int = 0  # row of the file's at which it begins: that of an expert
    # of heads whose rows the converter has put in another order: rows i and d / 2 + i of a head of d side by side;
    # 0: none
    heads: int = 0
    stacked: bool = False  # its rows are the experts of a tensor [E, N, D], whole

    @property
    def bytes(self) -> int:
        return self.tensor.bytes if self.stacked else self.rows * self.tensor.row_bytes

    def numbers(self, part: Part, begin: int, end: int) -> Tensor:
        if self.stacked:
            inner = self.tensor.shape[1]
            return self._widened(self._raw_rows(begin * inner, end * inner)).view(end - begin, *self.tensor.shape[1:])
        return self._widened(self._raw(begin, end))

    def _widened(self, raw: NDArray[np.uint8]) -> Tensor:
        """Rows of bytes in float32, or as plain types have them."""
        kind = self.tensor.kind
        if kind in PLAIN_KINDS:
            rows = torch.from_numpy(raw).view(PLAIN_KINDS[kind])
            return rows if len(self.tensor.shape) > 1 else rows.flatten()
        from gguf import GGMLQuantizationType, quants

        return torch.from_numpy(quants.dequantize(raw, GGMLQuantizationType[kind]))

    def four_bits(self, part: Part, begin: int, end: int) -> FourBits | None:
        kind = self.tensor.kind
        if self.stacked or kind not in STEPPED_KINDS or self.tensor.shape[-1] % GROUP:
            return None
        raw = torch.from_numpy(self._raw(begin, end))
        blocks = raw.view(len(raw), -1, STEPPED_KINDS[kind])
        steps, sizes = (_of_k if kind == "Q4_K" else _of_32)(blocks)
        return FourBits((steps.to(torch.int8) - 8).flatten(1), sizes.flatten(1, -2))

    def _raw(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Bytes [n, row] of rows in the published order."""
        if not self.heads:
            return self._raw_rows(begin, end)
        size = self.rows // self.heads
        low, high = begin // size * size, -(-end // size) * size
        place = np.arange(low, high).reshape(-1, size // 2, 2).swapaxes(1, 2).flatten()  # of each published row
        return self._raw_rows(low, high)[place[begin - low : end - low] - low]

    def _raw_rows(self, begin: int, end: int) -> NDArray[np.uint8]:
        """The file's rows, as they are there."""
        width = self.tensor.row_bytes
        at = self.tensor.begin + (self.first + begin) * width
        return np.fromfile(self.tensor.file, np.uint8, (end - begin) * width, offset=at).reshape(-1, width)


def _halves(blocks: Tensor, place: int) -> Tensor:
    """The number of float16 [n, b, 1] in two bytes of each block, in float32."""
    return blocks[..., place : place + 2].contiguous().view(torch.float16).float()


def _of_32(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Steps [n, b, 32] and sizes [n, b, 2] of blocks of Q4_0 or Q4_1."""
    size, data = _halves(blocks, 0), blocks[..., -GROUP // 2 :]
    least = size * 0 if blocks.shape[-1] == STEPPED_KINDS["Q4_0"] else 8 * size + _halves(blocks, 2)
    return torch.cat([data & 15, data >> 4], -1), torch.cat([size, least], -1)


def _of_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Steps [n, b, 256] and sizes [n, b, 8, 2] of blocks of Q4_K."""
    low, middle, high = blocks[..., 4:16].split(4, -1)
    scale = torch.cat([low & _SIX_BITS, high & 15 | low >> 6 << 4], -1)
    least = torch.cat([middle & _SIX_BITS, high >> 4 | middle >> 6 << 4], -1)
    size = _halves(blocks, 0) * scale
    pairs = blocks[..., 16:].unflatten(-1, (4, GROUP))
    steps = torch.stack([pairs & 15, pairs >> 4], -2).flatten(-3)
    return steps, torch.stack([size, 8 * size - _halves(blocks, 2) * least], -1)


@cache
def check_kind(kind: str) -> None:
    """Raise UserError for a type that gguf cannot widen."""
    if kind in PLAIN_KINDS:
        return
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

    tensor_type = GGMLQuantizationType[kind]
    try:
        quants.dequantize(np.zeros((1, GGML_QUANT_SIZES[tensor_type][1]), np.uint8), tensor_type)
    except (NotImplementedError, ValueError):
        raise UserError(
            f"type {kind} is not read: gguf does not widen it. Take a file of type Q8_0, Q4_K_M or the like."
        ) from None
