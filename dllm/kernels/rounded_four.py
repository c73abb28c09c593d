"""Products of rows in eight bits with weights in four: a tile of weights is widened to eight bits at a time.

Weights are w = q s + z, with a scale and a least value for 32 columns of an output (``narrow_product``). A sum of whole
numbers over all columns needs one scale S for an output: w = S v, v = round(w / S) in int8, S = max |w| / 127. In
numbers of 16 bits v = (n a + b) >> 7, with n the stored nibble, a = round(128 s / S), b = round(128 z / S) - 8 a + 64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dllm.kernels.narrow_linear import outputs_at_once
from dllm.kernels.narrow_product import GROUP
from dllm.kernels.rounded_rows import AT_ONCE, Rounded, with_bytes

POINT = 7  # bits after the point of a and b
LARGEST_BYTE = 127  # of v


@dataclass(frozen=True)
class Tile:
    """Some outputs in eight bits."""

    weight: Tensor  # int8 [D, n], each column an output
    scale: Tensor  # S, float32 [n]


class FourBitTiles:
    """Weights [N, D] as this CPU's operator reads them: of ``pack`` outputs for each column pack / 2 bytes, in which
    byte j holds output j (low) and pack / 2 + j (high), each plus 8."""

    def __init__(self, narrow: Tensor, scale: Tensor, pack: int) -> None:
        """narrow: uint8 [N, D / 2]. scale: s and z, [D / 32, N, 2]."""
        self.narrow, self.scale, self.half = narrow, scale, pack // 2
        self.width = 2 * narrow.shape[1]
        size, zero = scale.float().unbind(-1)
        peak = torch.maximum((zero - 8 * size).abs(), (zero + 7 * size).abs()).amax(0)
        self.tops = peak.clamp_(min=torch.finfo(torch.float32).tiny * LARGEST_BYTE).div_(LARGEST_BYTE)

    def operator(self, rows: Tensor) -> Tensor:
        """[R, N] by PyTorch's operator, which widens the weights for every row or two."""
        found: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.narrow, GROUP, self.scale)
        return found

    def product(self, rows: Rounded, dtype: torch.dtype, most: int, plain: bool) -> Tensor:
        """[R, N] of rows [R, D]. plain: by PyTorch's own product of bytes, else by oneDNN's
        operator."""
        given = list(rows.steps.to(torch.int8).split(AT_ONCE)) if plain else rows.bytes(most + 1)
        count = len(rows.steps)
        out = torch.empty(count - len(rows.again), len(self.narrow), dtype=dtype)
        parts = out.view(len(out), -1, 2, self.half)
        many = outputs_at_once(self.width) // (2 * self.half)
        for begin in range(0, parts.shape[1], many):
            for high, tile in enumerate(self.tiles(begin, min(many, parts.shape[1] - begin))):
                weight = tile.weight if plain else tile.weight.to_mkldnn()
                found = [torch._int_mm(part, weight).float().mul_(tile.scale) if plain else
                         with_bytes(part, most + 1, weight, tile.scale) for part in given]  # fmt: skip
                whole = (found[0] if len(found) == 1 else torch.cat(found))[:count]
                parts[:, begin : begin + many, high] = rows.joined(whole, dtype).view(len(out), -1, self.half)
        return out

    def tiles(self, begin: int, count: int) -> tuple[Tile, Tile]:
        """The outputs of ``count`` blocks from ``begin`` on: those of low nibbles, and those of high ones."""
        half, width = self.half, self.width
        pieces = self.narrow.view(torch.complex128).view(-1, width, half // 16)[begin : begin + count]
        turned = pieces.transpose(0, 1).contiguous().view(torch.uint8)  # 16 bytes a number: the widest that copies have
        ends = slice(begin * 2 * half, (begin + count) * 2 * half)
        size, zero = self.scale[:, ends].float().unbind(-1)
        unit = self.tops[ends] / 2**POINT
        a = (size / unit).round_().view(len(size), 1, count, 2, half)
        b = (zero / unit).round_().view_as(a).sub(a, alpha=8).add_(2 ** (POINT - 1))
        found = []
        for high, nibbles in enumerate((turned & 15, turned >> 4)):
            step, least = (one[..., high, :].to(torch.int16).flatten(2) for one in (a, b))
            wide = nibbles.to(torch.int16).view(len(size), GROUP, -1).mul_(step).add_(least)
            weight = wide.bitwise_right_shift_(POINT).to(torch.int8).view(width, -1)
            found.append(Tile(weight, self.tops[ends].view(count, 2, half)[:, high].flatten()))
        return found[0], found[1]
