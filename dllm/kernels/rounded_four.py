"""Products of rows in eight bits with weights in four: a tile of weights is widened to eight bits at a time.

Weights are w = q s + z, with a scale and a least value for 32 columns of an output (``narrow_product``). A sum of whole
numbers over all columns needs one scale S for an output: w = S v, v = round(w / S) in int8, S = max |w| / 127. In
numbers of 16 bits v = (n a + b) >> 7, with n the stored nibble, a = round(128 s / S), b = round(128 z / S) - 8 a + 64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.kernels.narrow_linear import PACK
from dllm.kernels.narrow_product import GROUP
from dllm.kernels.native import Library, in_threads, library
from dllm.kernels.rounded_rows import AT_ONCE, TINY, Rounded, with_bytes

POINT = 7  # bits after the point of a and b, as in ``bytes.c``
LARGEST_BYTE = 127  # of v
TILE_WEIGHTS = 1 << 20  # weights at a time: 1 MB, half of a core's second cache
TILED_ROWS, TILED_COLUMNS, TILED_HALF = 16, 64, 32  # of a matrix unit's tiles, and of the layout of weights
OUTPUTS_AT_A_TIME = 1024  # of a matrix unit's products: 1 MB of float32 at 256 rows


class FourBitTiles:
    """Weights [N, D] as this CPU's operator reads them: of ``pack`` outputs for each column pack / 2 bytes, in which
    byte j holds output j (low) and pack / 2 + j (high), each plus 8."""

    def __init__(self, narrow: Tensor, scale: Tensor, pack: int) -> None:
        """narrow: uint8 [N, D / 2]. scale: s and z, [D / 32, N, 2]."""
        self.narrow, self.scale, self.half = narrow, scale, pack // 2
        self.width = 2 * narrow.shape[1]
        size, zero = scale.float().unbind(-1)
        peak = torch.maximum((zero - 8 * size).abs(), (zero + 7 * size).abs()).amax(0)
        self.tops = peak.clamp_(min=TINY * LARGEST_BYTE).div_(LARGEST_BYTE)  # S [N]
        self.inverse = 2**POINT / self.tops

    def operator(self, rows: Tensor) -> Tensor:
        """[R, N] by PyTorch's operator, which widens the weights for every row or two."""
        return torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.narrow, GROUP, self.scale)

    def product(self, rows: Rounded, dtype: torch.dtype, most: int, plain: bool) -> Tensor:
        """[R, N] of rows [R, D]. plain: by PyTorch's own product of bytes, else by oneDNN's operator. A matrix unit of
        bytes takes the place of either, since the whole numbers are the same."""
        native = library()
        if native is not None and native.has_tiles and self.half == TILED_HALF and self.width % TILED_COLUMNS == 0:
            return self._by_matrix_unit(rows, dtype, native)
        parts = list(rows.steps.split(AT_ONCE)) if plain else rows.bytes(most + 1)
        count = len(rows.steps)
        out = torch.empty(count - len(rows.again), len(self.narrow), dtype=dtype)
        many = max(1, TILE_WEIGHTS // self.width // (2 * self.half)) * 2 * self.half
        buffer = torch.empty(self.width * many, dtype=torch.int8)
        for begin in range(0, len(self.narrow), many):
            end = min(begin + many, len(self.narrow))
            weight, scale = self.tile(begin, end, buffer), self.tops[begin:end]
            there = weight if plain else weight.to_mkldnn()
            products = [
                scaled(torch._int_mm(part, there), scale) if plain else with_bytes(part, most + 1, there, scale)
                for part in parts
            ]
            whole = (products[0] if len(products) == 1 else torch.cat(products))[:count]
            rows.joined(whole, dtype, out[:, begin:end])
        return out

    def _by_matrix_unit(self, rows: Rounded, dtype: torch.dtype, native: Library) -> Tensor:
        """``product``, each block of 64 outputs multiplied as it is widened: on a Xeon 30 instead of 48 ms of a weight
        of 24,576 x 4,096 at 32 rows."""
        count = len(rows.steps)
        padded = torch.constant_pad_nd(rows.steps, (0, 0, 0, -count % TILED_ROWS))
        out = torch.empty(count - len(rows.again), len(self.narrow), dtype=dtype)
        products = torch.empty(len(padded) * OUTPUTS_AT_A_TIME)
        for begin in range(0, len(self.narrow), OUTPUTS_AT_A_TIME):
            end = min(begin + OUTPUTS_AT_A_TIME, len(self.narrow))
            whole = products[: len(padded) * (end - begin)].view(len(padded), -1)
            self._multiply(padded, begin, end, whole, native)
            rows.joined(whole[:count], dtype, out[:, begin:end])
        return out

    def _multiply(self, steps: Tensor, begin: int, end: int, out: Tensor, native: Library) -> None:
        def act(first: int, last: int) -> None:
            at, here = begin + first * PACK, first * PACK
            done = native.call("multiply_tiles", steps, self.narrow[at:], self.scale[:, at:], self.inverse[at:],
                               self.tops[at:], out[:, here:], len(steps), self.width, last - first, len(self.narrow),
                               end - begin)  # fmt: skip
            if not done:
                raise MemoryError(f"no {self.width * PACK:,} bytes for a block of weights")

        in_threads((end - begin) // PACK, act)

    def tile(self, begin: int, end: int, buffer: Tensor) -> Tensor:
        """Outputs from ``begin`` to ``end``, whole packs, in eight bits: int8 [D, n]. buffer: int8, where they go."""
        weight, native = buffer[: self.width * (end - begin)].view(self.width, -1), library()
        if native is None:
            return self._tile(begin, end, weight)
        narrow, sizes, inverse = self.narrow[begin:end], self.scale[:, begin:end], self.inverse[begin:end]
        counts = self.width, self.half, len(self.narrow), end - begin

        def act(first: int, last: int) -> None:
            at = first * 2 * self.half
            native.call("widen_bytes", narrow[at:], sizes[:, at:], inverse[at:], weight[:, at:], last - first, *counts)

        in_threads((end - begin) // (2 * self.half), act)
        return weight

    def _tile(self, begin: int, end: int, weight: Tensor) -> Tensor:
        """What ``tile`` is."""
        parts = self.narrow[begin:end].view(-1, self.width, self.half).transpose(0, 1)
        nibbles = torch.stack([parts & 15, parts >> 4], 2).to(torch.int16).view(-1, GROUP, end - begin)
        size, zero = (self.scale[:, begin:end].float() * self.inverse[begin:end, None]).round_().unbind(-1)
        least = zero.sub(size, alpha=8).add_(2 ** (POINT - 1))
        step, least = (tensor.to(torch.int16)[:, None] for tensor in (size, least))
        return weight.copy_(nibbles.mul_(step).add_(least).bitwise_right_shift_(POINT).view_as(weight))


def scaled(product: Tensor, scale: Tensor) -> Tensor:
    """Whole products int32 [R, N] times a scale of each output, in float32."""
    native = library()
    if native is None:
        return product.float().mul_(scale)
    width = product.shape[1]
    in_threads(
        len(product), lambda begin, end: native.call("scale_outputs", product[begin:], scale, end - begin, width)
    )
    return product.view(torch.float32)
