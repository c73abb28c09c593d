"""Matrices of codes with a scale for every block of them, w = (q - z) s + b: all packed formats but GGUF's and NF4.

A code q is widened, and of its block there are a scale s, a zero z and an offset b, where the format has them. All is
in float32, and the product is rounded before the sum.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from dllm.kernels.narrow_product import GROUP
from dllm.models.formats.codes import from_codes, unsigned
from dllm.models.formats.packing import FourBits, Packing, Part
from dllm.models.keys import printed
from dllm.models.weights.files import StoredTensor, broken

BUNCH = 32  # numbers: whatever their bits, they fill whole words of 32 bits
WORD_BITS = 32  # bits
WHOLE_AXIS = 1 << 62  # rows or columns of a block that is the whole tensor
_AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]  # of eight outputs in a word, from its lowest bits on


@dataclass(frozen=True)
class Scheme:
    """How the weights of some modules are packed."""

    label: str  # what people call it: FP8, INT4, GPTQ 4-bit, MLX mxfp4, ...
    codes: str  # of its numbers, see ``dllm.models.formats.codes``
    block: tuple[int, int]  # rows and columns that share a scale
    weight: str = "weight"  # the leaf that holds the codes
    scale: str = "weight_scale"  # the leaf that holds the scales
    # of scales that must be bytes; empty: they are floats, or bytes whose kind says what they are
    scale_codes: str = ""
    zeros: str = ""  # the leaf that holds zeros; empty: none
    offsets: str = ""  # the leaf that holds offsets; empty: none
    overall: str = ""  # the leaf of a number that all scales have in common; empty: none
    divided: bool = False  # scales are divided by it, not weights multiplied
    steps_per_unit: float = 1.0  # what divides every weight: int8 of bitsandbytes has 127 steps to its scale

    @property
    def byte_scales(self) -> str:
        """What bytes without a kind are as scales."""
        return "e4m3" if self.scale_codes == "e4m3" else "e8m0"

    @property
    def in_words(self) -> bool:
        """Whether codes are in words of 32 bits."""
        return self.codes.startswith("uint")

    @property
    def bits(self) -> int:
        """Of a code."""
        return int(self.codes.removeprefix("uint")) if self.in_words else 4 if self.codes == "e2m1" else 8


class _Codes(NamedTuple):
    """Rows of a matrix, or one for all of them."""

    codes: Tensor  # q [n, D], or [n, N, D] of experts
    scale: Tensor  # s [n, G]; one of its sizes may be 1
    zero: Tensor | None  # z, of the same kind; None: 0
    offset: Tensor | None = None  # b; None: 0


@dataclass(frozen=True)
class Affine(Packing):
    """A tensor [N, D], or [E, N, D] of experts."""

    scheme: Scheme  # how its numbers are stored
    weight: StoredTensor  # the codes
    scales: StoredTensor  # s
    zeros: StoredTensor | None  # z; None: none

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Of the tensor."""

    @abstractmethod
    def read(self, part: Part, begin: int, end: int) -> _Codes:
        """Rows from and to."""

    def order(self, part: Part) -> Tensor | None:
        """The block [D] of each column; None: columns of a block are neighbours."""
        return None

    def numbers(self, part: Part, begin: int, end: int) -> Tensor:
        codes, scale, zero, offset = self.read(part, begin, end)
        order, values = self.order(part), codes.float()
        if zero is not None:
            values -= self._spread(zero, order)
        values *= self._spread(scale, order)
        if offset is not None:
            values += self._spread(offset, order)
        return values

    def four_bits(self, part: Part, begin: int, end: int) -> FourBits | None:
        (rows, width), columns, order = self.scheme.block, self.shape[-1], self.order(part)
        odd = self.scheme.codes != "uint4" or rows != 1 or self.scheme.overall or len(self.shape) != 2
        if odd or columns % GROUP or (width % GROUP and width < columns):
            return None
        firsts = torch.arange(0, columns, GROUP)
        block = firsts // width if order is None else order[firsts]
        if order is not None and not torch.equal(order, block.repeat_interleave(GROUP)):
            return None
        codes, scale, zero, offset = self.read(part, begin, end)
        least = scale * (8 - (0.0 if zero is None else zero)) + (0.0 if offset is None else offset)
        sizes = torch.stack(torch.broadcast_tensors(scale, least), -1).expand(end - begin, -1, -1)
        if not sizes.sum().isfinite():
            raise broken(f"the scales of tensor {printed(self.weight.name)} hold what is not a number")
        return FourBits(codes.to(torch.int8) - 8, sizes[:, block].contiguous())

    def _spread(self, blocks: Tensor, order: Tensor | None) -> Tensor:
        """What is there for each block, for each column."""
        if order is not None:
            return blocks[..., order]
        if blocks.shape[-1] == 1:
            return blocks
        return blocks[..., None].expand(*blocks.shape, self.scheme.block[1]).flatten(-2)[..., : self.shape[-1]]


@dataclass(frozen=True)
class Scaled(Affine):
    """Codes and scales by rows: MLX, compressed-tensors, ModelOpt, float8, int8; or one expert of such a tensor."""

    columns: int  # D
    offsets: StoredTensor | None = None  # b; None: none
    overall: StoredTensor | None = None  # a number that all scales have in common; None: none
    expert: int | None = None  # which of the first axis; None: the tensor is whole

    @property
    def bytes(self) -> int:
        tensors = (self.weight, self.scales, self.zeros, self.offsets, self.overall)
        return sum(tensor.bytes for tensor in tensors if tensor is not None) // (
            1 if self.expert is None else self.weight.shape[0]
        )

    @property
    def shape(self) -> tuple[int, ...]:
        rows = self.weight.shape[:-1] if self.expert is None else self.weight.shape[1:-1]
        return (*rows, self.columns)

    def numbers(self, part: Part, begin: int, end: int) -> Tensor:
        values = super().numbers(part, begin, end)
        if self.overall is not None and not self.scheme.divided:
            values *= part(self.overall).float()
        if self.scheme.steps_per_unit != 1:
            values /= self.scheme.steps_per_unit
        if not values.sum().isfinite():
            raise broken(f"tensor {printed(self.weight.name)} or its scales hold what is not a number")
        return values

    def read(self, part: Part, begin: int, end: int) -> _Codes:
        data = self._rows(part, self.weight, begin, end).contiguous().view(torch.uint8)
        whole, codes = self.scheme.in_words, self.scheme.codes
        numbers = unsigned(data, self.scheme.bits, self.columns) if whole else from_codes(data, codes, self.columns)
        offset = None if self.offsets is None else self._rows(part, self.offsets, begin, end).float()
        return _Codes(numbers, self._scale(part, begin, end), self._zero(part, begin, end), offset)

    def _rows(self, part: Part, tensor: StoredTensor, begin: int, end: int) -> Tensor:
        """Rows of one of its tensors."""
        if self.expert is None:
            return part(tensor, slice(begin, end))
        return part(tensor, slice(self.expert, self.expert + 1), slice(begin, end))[0]

    def _scale(self, part: Part, begin: int, end: int) -> Tensor:
        """Scales [n, .., G], or [1, 1] of all."""
        rows = self.scheme.block[0]
        if prod(self.scales.shape) == 1:
            scale = part(self.scales).view(1, 1)
        else:
            scale = self._rows(part, self.scales, begin // rows, -(-end // rows))
            scale = scale.view(len(scale), -1) if scale.dim() == 1 else scale
        codes = {"U8": self.scheme.byte_scales, "F8_E8M0": "e8m0", "F8_E4M3": "e4m3"}.get(self.scales.dtype, "")
        scale = from_codes(scale, codes, scale.shape[-1]) if codes else scale.float()
        if rows > 1 and len(scale) > 1:
            scale = scale[torch.arange(begin, end) // rows - begin // rows]
        return scale / part(self.overall).float() if self.overall is not None and self.scheme.divided else scale

    def _zero(self, part: Part, begin: int, end: int) -> Tensor | None:
        """Codes of zero [n, G], or [1, 1] of all: the middle one, and what is beside it. MLX has offsets instead."""
        bits = self.scheme.bits
        middle = 2 ** (bits - 1) if self.scheme.in_words and self.offsets is None else 0
        if self.zeros is None:
            return torch.full((1, 1), float(middle)) if middle else None
        if self.zeros.dtype != "I32":
            return self._rows(part, self.zeros, begin, end).float().view(end - begin, -1) + middle
        first = begin // BUNCH * BUNCH
        words = part(self.zeros, slice(first * bits // WORD_BITS, -(-end * bits // WORD_BITS)))
        return unsigned(words.t().contiguous().view(torch.uint8), bits, end - first)[:, begin - first :].t().float()


@dataclass(frozen=True)
class Grouped(Affine):
    """A matrix of GPTQ or AWQ, as their published packers write it: w = (q - z) s.

    In words of 32 bits ``qweight``, GPTQ's [D bits / 32, N] with the columns of a word from its lowest bits on, AWQ's
    [D, N / 8] with eight outputs of a word in the order 0, 2, 4, 6, 1, 3, 5, 7; ``qzeros`` [G, N bits / 32], packed by
    outputs; ``scales`` [G, N]; and, in GPTQ's, ``g_idx`` [D], the group of each column. GPTQ's first format has zeros
    that are one less, subtracted from whole words.
    """

    index: StoredTensor | None = None  # g_idx; None: the columns of a group are neighbours
    subtracted: int = 0  # from stored zeros, of each number of a word
    awq: bool = False  # packed along outputs

    @property
    def bytes(self) -> int:
        tensors = (self.weight, self.zeros, self.scales, self.index)
        return sum(tensor.bytes for tensor in tensors if tensor is not None)

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.weight.shape
        many = WORD_BITS // self.scheme.bits
        return (columns * many, rows) if self.awq else (columns, rows * many)

    def read(self, part: Part, begin: int, end: int) -> _Codes:
        if self.awq:
            codes = self._across(part, self.weight, begin, end)
        else:
            words = part(self.weight, slice(None), slice(begin, end)).t().contiguous()
            codes = unsigned(words.view(torch.uint8), self.scheme.bits, self.shape[1])
        assert self.zeros is not None
        zero = self._across(part, self.zeros, begin, end, self.subtracted).float()
        return _Codes(codes, part(self.scales, slice(None), slice(begin, end)).t().float(), zero)

    def _across(self, part: Part, tensor: StoredTensor, begin: int, end: int, more: int = 0) -> Tensor:
        """Numbers [n, k] of outputs that are packed side by side. more: is added to each number of whole words."""
        bits = self.scheme.bits
        many = WORD_BITS // bits
        words = part(tensor, slice(None), slice(begin // many, -(-end // many)))
        words = words + more * sum(1 << place for place in range(0, WORD_BITS, bits))
        numbers = unsigned(words.contiguous().view(torch.uint8), bits, words.shape[1] * many)
        if self.awq:
            numbers = numbers.unflatten(-1, (-1, many))[..., _AWQ_PLACES].flatten(-2)
        return numbers[:, begin % many :][:, : end - begin].t().contiguous()

    def order(self, part: Part) -> Tensor | None:
        return None if self.index is None else part(self.index).long()

    @property
    def in_order(self) -> Tensor:
        """The group [D] of each column where those of a group are neighbours."""
        return torch.arange(self.shape[1]) // self.scheme.block[1]

    def file_zero(self, part: Part) -> int | None:
        """The number that stands for every zero in the file; None: they are not all the same."""
        assert self.zeros is not None
        low, high = self._across(part, self.zeros, 0, self.shape[0]).aminmax()
        return int(low) if low == high else None
