"""Linear layers with weights in eight or four bits: y = x W^T + b, W as ``narrow_product`` stores it.

A CPU has PyTorch's own operators for few rows, in bfloat16. They widen the weights anew for every row or two, so their
time grows with the rows. From ``WIDENED_FROM`` rows on a tile of weights is widened once, into a buffer that stays in
the processor's cache, and oneDNN multiplies all rows with it. Both give the product of the widened weights with sums in
float32, rounded to bfloat16, up to the order of the sums; in eight bits the scale follows after that rounding, which is
one more. Milliseconds of CPU of a weight of 24,576 x 4,096, one EPYC core:

| rows | bfloat16 | 8 bits, operator | 8 bits, widened | 4 bits, operator | 4 bits, widened |
|---|---|---|---|---|---|
| 8 | 13.9 | 13.8 | 19.4 | 9.6 | - |
| 16 | 15.7 | 26.2 | 22.9 | 19.5 | - |
| 32 | 23.8 | 54.5 | 28.5 | 37.1 | 73 |
| 124 | 60 | 235 | 68 | 150 | 109 |
| 256 | 114 | 469 | 122 | 301 | 180 |
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from dllm.kernels.narrow_product import GROUP, OUTPUTS_AT_ONCE, narrow_product, narrowed, stepped

WIDENED_FROM = {8: 13, 4: 96}  # rows, by the weights' bits; see the table above
OUTPUTS = {8: 512, 4: 512}  # widened at a time: 4 MB of bfloat16 for rows of 4,096 numbers
PACK = 64  # outputs whose four-bit weights a CPU's operator keeps together


class NarrowLinear(nn.Module):
    """x W^T + b [..., N] of x [..., D], with the weights of ``linear`` in ``bits`` (8 or 4) bits. triton: our kernel
    multiplies, else a CPU's operators do."""

    narrow: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear, bits: int, triton: bool) -> None:
        super().__init__()
        weight, scale = narrowed(linear.weight.detach(), bits)
        self.triton, self.bias, self.bits = triton, linear.bias, bits
        self.register_buffer("narrow", weight if triton or bits == 8 else laid_out(weight, scale))
        self.register_buffer("scale", scale if triton else scale_of_cpu(scale, bits))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2).contiguous()
        if self.triton:
            product = narrow_product(rows, self.narrow, self.scale, True)
        else:
            product = cpu_product(rows, self.narrow, self.scale, self.bits)
        product = product.view(*x.shape[:-1], product.shape[-1])
        return product if self.bias is None else product + self.bias


def cpu_product(rows: Tensor, narrow: Tensor, scale: Tensor, bits: int) -> Tensor:
    """[R, N] from rows [R, D] on a CPU, with weights and scales as ``NarrowLinear`` keeps them there."""
    many = len(rows) >= WIDENED_FROM[bits] and not torch.compiler.is_compiling()
    if bits == 8:
        return widened_eight(rows, narrow, scale) if many else torch._weight_int8pack_mm(rows, narrow, scale)
    if many and len(narrow) % PACK == 0 and packs_by_64():
        return widened_four(rows, narrow, scale)
    return torch.ops.aten._weight_int4pack_mm_for_cpu(rows, narrow, GROUP, scale)


def widened_eight(rows: Tensor, narrow: Tensor, scale: Tensor) -> Tensor:
    """[R, N]: steps of -127 to 127 are numbers of bfloat16; ``scale`` [N] follows the product."""
    out = rows.new_empty(len(rows), len(narrow))
    buffer = rows.new_empty(OUTPUTS[8], rows.shape[1])
    for begin in range(0, len(narrow), OUTPUTS[8]):
        steps = narrow[begin : begin + OUTPUTS[8]]
        out[:, begin : begin + len(steps)] = rows @ buffer[: len(steps)].copy_(steps).t()
    return out.mul_(scale)


def widened_four(rows: Tensor, narrow: Tensor, scale: Tensor) -> Tensor:
    """[R, N] from the operator's own layout of an AVX-512 CPU: of 64 outputs, for each column 32 bytes, in which byte j
    holds output j (low) and 32 + j (high), each plus 8. scale [G, N, 2]."""
    blocks, width = narrow.view(-1, rows.shape[1] // GROUP, GROUP, PACK // 2), rows.shape[1]
    scales = scale[..., 0].view(len(scale), len(blocks), 2, 1, PACK // 2).permute(1, 2, 0, 3, 4).contiguous()
    out, many = rows.new_empty(len(rows), len(narrow)), OUTPUTS[4] // PACK
    steps = narrow.new_empty(many, *blocks.shape[1:], dtype=torch.int8)
    buffer = rows.new_empty(width, many, 2, PACK // 2)
    for begin in range(0, len(blocks), many):
        tile = blocks[begin : begin + many]
        signed, wide = steps[: len(tile)], buffer.view(-1)[: width * len(tile) * PACK].view(width, len(tile), 2, -1)
        target = wide.view(*blocks.shape[1:3], len(tile), 2, -1).permute(2, 0, 1, 3, 4)
        for half, nibbles in enumerate((torch.bitwise_and, torch.bitwise_right_shift)):
            nibbles(tile, 4 if half else 15, out=signed.view(torch.uint8))
            torch.mul(signed.sub_(8), scales[begin : begin + many, half], out=target[:, :, :, half])
        out[:, begin * PACK : (begin + len(tile)) * PACK] = rows @ wide.view(width, -1)
    return out


@cache
def packs_by_64() -> bool:
    """Whether this processor's layout of four-bit weights is the one that ``widened_four`` reads."""
    steps = (torch.arange(PACK)[:, None] * 5 + torch.arange(GROUP) * 3).remainder(16).int()
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(steps, 1)
    low, high = steps.t().to(torch.uint8).chunk(2, 1)
    return bool(torch.equal(packed.view(GROUP, PACK // 2), low | high << 4))


def laid_out(weight: Tensor, scale: Tensor) -> Tensor:
    """Weights in four bits as a CPU's operator reads them."""
    packed = torch.empty_like(weight)
    for begin in range(0, len(weight), OUTPUTS_AT_ONCE):
        at = slice(begin, begin + OUTPUTS_AT_ONCE)
        steps = stepped(weight[at], scale[at]).flatten(1).int() + 8
        packed[at] = torch.ops.aten._convert_weight_to_int4pack_for_cpu(steps, 1)
    return packed


def scale_of_cpu(scale: Tensor, bits: int) -> Tensor:
    """Scales [N, G] as a CPU's operators read them: [N], or with the zero point 0 as [G, N, 2]."""
    if bits == 8:
        return scale.flatten()
    return torch.stack([scale, torch.zeros_like(scale)], -1).transpose(0, 1).contiguous()
