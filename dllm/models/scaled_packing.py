"""Matrices of codes with a scale for every block of them: MLX, compressed-tensors, ModelOpt, float8, int8 by rows.

A weight is (q - z) s + b, in float32: a code q, widened, and of its block a scale s, a zero z and an offset b, where
the format has them. The product is rounded before the sum.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from dllm.kernels.narrow_product import GROUP
from dllm.models.codes import from_codes, unsigned
from dllm.models.files import Stored, broken
from dllm.models.keys import printed
from dllm.models.packing import FourBits, Packing, Part

BUNCH = 32  # numbers: whatever their bits, they fill whole words of 32 bits
FOUR_BITS = "uint4"  # codes that ``model.quantize=int4`` keeps


@dataclass(frozen=True)
class Scaled(Packing):
    """A tensor [N, D], or [E, N, D] of experts, or one expert of such a one."""

    codes: str  # of its numbers, see ``dllm.models.codes``
    columns: int  # D
    weight: Stored  # the codes, by rows of the tensor
    scales: Stored  # s; a single one is that of all
    block: tuple[int, int]  # rows and columns that share a scale
    scale_codes: str = ""  # of scales that are bytes; empty: they are floats
    middle: int = 0  # the code of zero
    zeros: Stored | None = None  # z, beside the middle; int32 packed down the rows, or int8; None: no others
    offsets: Stored | None = None  # b, which has the shape of the scales; None: none
    overall: Stored | None = None  # a number that all scales have in common; None: none
    divided: bool = False  # scales are divided by it, not weights multiplied
    steps_of_one: float = 1.0  # what divides every weight: int8 of bitsandbytes has 127 steps to its scale
    expert: int | None = None  # which of the first axis; None: the tensor is whole

    @property
    def bytes(self) -> int:
        held = (self.weight, self.scales, self.zeros, self.offsets, self.overall)
        return sum(one.bytes for one in held if one is not None) // (1 if self.expert is None else self.experts)

    @property
    def experts(self) -> int:
        """How many the file's tensor has."""
        return self.weight.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor."""
        rows = self.weight.shape[:-1] if self.expert is None else self.weight.shape[1:-1]
        return (*rows, self.columns)

    def numbers(self, part: Part, begin: int, end: int) -> Tensor:
        values, scale = (
            from_codes(self._bytes(part, begin, end), self.codes, self.columns),
            self._scale(part, begin, end),
        )
        if self.middle or self.zeros is not None:
            values -= self._spread(self._zero(part, begin, end))
        values *= self._spread(scale)
        if self.offsets is not None:
            values += self._spread(self._rows(part, self.offsets, begin, end).float())
        if self.overall is not None and not self.divided:
            values *= part(self.overall).float()
        if self.steps_of_one != 1:
            values /= self.steps_of_one
        if not values.sum().isfinite():
            raise broken(f"tensor {printed(self.weight.name)} or its scales hold what is not a number")
        return values

    def four_bits(self, part: Part, begin: int, end: int) -> FourBits | None:
        rows, width = self.block
        odd = self.codes != FOUR_BITS or rows != 1 or self.overall is not None or len(self.shape) != 2
        if odd or self.columns % GROUP or (width % GROUP and width < self.columns):
            return None
        steps = unsigned(self._bytes(part, begin, end), 4, self.columns).to(torch.int8) - 8
        scale = self._scale(part, begin, end)
        zero = scale * (8 - self._zero(part, begin, end))
        if self.offsets is not None:
            zero = zero + self._rows(part, self.offsets, begin, end).float()
        sizes = torch.stack([scale, zero], -1)
        if not sizes.sum().isfinite():
            raise broken(f"the scales of tensor {printed(self.weight.name)} hold what is not a number")
        groups = self.columns // GROUP
        return FourBits(steps, sizes.repeat_interleave(-(-groups // sizes.shape[1]), 1)[:, :groups].contiguous())

    def _rows(self, part: Part, stored: Stored, begin: int, end: int) -> Tensor:
        """Rows of one of its tensors."""
        if self.expert is None:
            return part(stored, slice(begin, end))
        return part(stored, slice(self.expert, self.expert + 1), slice(begin, end))[0]

    def _bytes(self, part: Part, begin: int, end: int) -> Tensor:
        return self._rows(part, self.weight, begin, end).contiguous().view(torch.uint8)

    def _scale(self, part: Part, begin: int, end: int) -> Tensor:
        """Scales [n, .., G], or [1, 1] of all."""
        rows = self.block[0]
        if prod(self.scales.shape) == 1:
            found = part(self.scales).view(1, 1)
        else:
            found = self._rows(part, self.scales, begin // rows, -(-end // rows))
            found = found.view(len(found), -1) if found.dim() == 1 else found
        found = from_codes(found, self.scale_codes, found.shape[-1]) if self.scale_codes else found.float()
        if rows > 1 and len(found) > 1:
            found = found[torch.arange(begin, end) // rows - begin // rows]
        return found / part(self.overall).float() if self.overall is not None and self.divided else found

    def _zero(self, part: Part, begin: int, end: int) -> Tensor:
        """Codes of zero [n, G], or [1, 1] of all, in float32."""
        if self.zeros is None:
            return torch.full((1, 1), float(self.middle))
        if self.zeros.dtype != "I32":
            return self._rows(part, self.zeros, begin, end).float().view(end - begin, -1) + self.middle
        bits, first = int(self.codes.removeprefix("uint")), begin // BUNCH * BUNCH
        words = part(self.zeros, slice(first * bits // 32, -(-end * bits // 32)))
        return unsigned(words.t().contiguous().view(torch.uint8), bits, end - first)[:, begin - first :].t().float()

    def _spread(self, blocks: Tensor) -> Tensor:
        """What is there for each block, for each column."""
        if blocks.shape[-1] == 1:
            return blocks
        return blocks[..., None].expand(*blocks.shape, self.block[1]).flatten(-2)[..., : self.columns]


def check_tensor(one: Stored, shape: tuple[int, ...], dtypes: Collection[str], said: str) -> None:
    """Raise UserError for a tensor of another shape, or kind, than what is ``said`` implies."""
    if one.shape != shape:
        raise broken(f"tensor {printed(one.name)} has shape {list(one.shape)}, {said} implies {list(shape)}")
    if one.dtype not in dtypes:
        raise broken(f"tensor {printed(one.name)} is stored as {one.dtype}, {said} implies {' or '.join(dtypes)}")
