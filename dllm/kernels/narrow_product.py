"""Rows multiplied with weights in eight or four bits: y = x (q s)^T, widened tile by tile.

Rows x are [R, D]. Eight bits: q [N, D] in int8, one scale s [N, 1] per output. Four bits: one scale s [N, D / 128] per
128 columns of an output, and q [N, D / 2] in uint8: byte j of a group holds columns j (low) and 64 + j (high), each
plus 8. The scales are rounded first and the weights by them, so that w = q s to within half a step.

With few rows a product takes the time of reading the weights, here a half or a quarter of bfloat16's bytes. PyTorch
2.13 has nothing for that on a GPU: what torch.compile makes of torchao's int8 is ``_weight_int8pack_mm``, one thread
per output in float32 (aten/src/ATen/native/cuda/int8mm.cu), and torchao's int4 kernel reads the weights once per 16
rows. Above 128 rows the product computes longer than it reads: the library multiplies with the weights widened whole.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.kernels.jit import Build, LaunchConfig, interpreted, jit, power_of_two, tl

GROUP = 128  # columns with one scale, in four bits
OUTPUTS_AT_ONCE = 64  # outputs that are rounded together
MOST_ROWS = 128  # the kernel's; as many as the fused head takes
# By rows. 32 outputs a program, so that 4,096 of them keep 128 processors reading; with five stages each has 16 KB of
# eight-bit weights under way, about what an H100's memory wants of one (3.35 TB/s, 0.7 us, 132 processors: 18 KB).
_CONFIGS = {
    rows: LaunchConfig({"BLOCK_R": rows, "BLOCK_N": 32, "BLOCK_D": GROUP}, warps=4, stages=stages)
    for rows, stages in ((16, 5), (32, 5), (64, 4))  # at 64 rows a fifth stage is more than gfx942's shared memory
}


def narrowed(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Weights [N, D] rounded to the nearest of ``bits`` (8 or 4) bits, and their scales in the weights' dtype."""
    count, width = weight.shape
    steps = weight.new_empty(count, width if bits == 8 else width // 2, dtype=torch.int8 if bits == 8 else torch.uint8)
    scale = weight.new_empty(count, 1 if bits == 8 else width // GROUP)
    for begin in range(
        0, count, OUTPUTS_AT_ONCE
    ):  # what they take meanwhile stays in a CPU's cache: four times as fast
        at = slice(begin, begin + OUTPUTS_AT_ONCE)
        steps[at], scale[at] = _narrowed(weight[at], bits)
    return steps, scale


def _narrowed(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    groups = weight.float().view(len(weight), -1, GROUP if bits == 4 else weight.shape[1])
    most = 2 ** (bits - 1) - 1
    low, high = torch.aminmax(groups, dim=-1)
    scale = (torch.maximum(high, -low) / most).clamp_min(torch.finfo(torch.float32).tiny).to(weight.dtype)
    steps = (groups / scale.float().unsqueeze(-1)).round_().clamp_(-most, most).to(torch.int8)
    return (steps.flatten(1) if bits == 8 else in_bytes(steps)), scale


def in_bytes(steps: Tensor) -> Tensor:
    """Bytes [N, D / 2] of steps [N, D / 128, 128] from -8 to 7."""
    low, high = (steps + 8).to(torch.uint8).chunk(2, -1)
    return (low | high << 4).flatten(1)


def stepped(weight: Tensor, scale: Tensor) -> Tensor:
    """The steps [N, G, D / G] of the G groups of narrow weights."""
    if weight.dtype == torch.int8:
        return weight.unsqueeze(1)
    pairs = weight.view(*scale.shape, GROUP // 2)
    return torch.cat([pairs & 15, pairs >> 4], -1).to(torch.int8) - 8


def widened(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The weights [N, D] that narrow ones stand for."""
    return (stepped(weight, scale).to(dtype) * scale.to(dtype).unsqueeze(-1)).flatten(1)


def reference(rows: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """[R, N] from rows [R, D], narrow weights and their scales, with sums in float32."""
    return F.linear(rows.float(), widened(weight, scale, torch.float32)).to(rows.dtype)


@jit("R")
def _narrow(rows, weight, scale, out, R, N, D, FOUR: tl.constexpr, UPCAST: tl.constexpr,
            BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """One program per tile of BLOCK_N outputs and BLOCK_R rows; of one tile of weights, the programs of all rows follow
    each other. UPCAST: widen before the product, because the interpreter multiplies the bits of bfloat16 numbers."""
    KIND: tl.constexpr = tl.float32 if UPCAST else rows.dtype.element_ty
    WIDTH: tl.constexpr = BLOCK_D // 2 if FOUR else BLOCK_D
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    output = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth, known = tl.arange(0, WIDTH), output < N
    stride = D // 2 if FOUR else D
    source = weight + output[:, None].to(tl.int64) * stride + depth[None, :]
    given = rows + row[None, :].to(tl.int64) * D + depth[:, None]
    total = tl.zeros([BLOCK_N, BLOCK_R], tl.float32)
    for chunk in range(tl.cdiv(D, BLOCK_D)):
        inside = chunk * BLOCK_D + depth < D
        w = tl.load(source + chunk * WIDTH, mask=known[:, None] & inside[None, :], other=0)
        x = tl.load(given + chunk * BLOCK_D, mask=(row[None, :] < R) & inside[:, None], other=0.0).to(KIND)
        if FOUR:
            high = tl.load(given + chunk * BLOCK_D + WIDTH, mask=row[None, :] < R, other=0.0).to(KIND)
            part = tl.dot(((w & 15).to(tl.int8) - 8).to(KIND), x, input_precision="ieee")
            part = tl.dot(((w >> 4).to(tl.int8) - 8).to(KIND), high, part, input_precision="ieee")
            size = tl.load(scale + output.to(tl.int64) * (D // BLOCK_D) + chunk, mask=known, other=0.0)
            total += part * size.to(tl.float32)[:, None]
        else:
            total = tl.dot(w.to(KIND), x, total, input_precision="ieee")
    if not FOUR:
        total *= tl.load(scale + output, mask=known, other=0.0).to(tl.float32)[:, None]
    tl.store(out + row[None, :].to(tl.int64) * N + output[:, None], total.to(out.dtype.element_ty),
             mask=(row[None, :] < R) & known[:, None])  # fmt: skip


def narrow_product(rows: Tensor, weight: Tensor, scale: Tensor, triton: bool = False) -> Tensor:
    """``reference``. triton: the kernel up to 128 rows, equal up to the order of the sums, and above it the library's
    product, equal up to the rounding of the widened weights."""
    if not triton:
        return reference(rows, weight, scale)
    if len(rows) > MOST_ROWS:
        return F.linear(rows, widened(weight, scale, rows.dtype))
    rows, (count, width) = rows.contiguous(), rows.shape
    out = rows.new_empty(count, len(weight))
    if count:
        config = _CONFIGS[min(64, max(16, power_of_two(count)))]
        _narrow[(-(-count // config.blocks["BLOCK_R"]), -(-len(weight) // config.blocks["BLOCK_N"]))](
            rows, weight, scale, out, count, len(weight), width, FOUR=weight.dtype == torch.uint8,
            UPCAST=interpreted() and rows.dtype == torch.bfloat16, **config.arguments,
        )  # fmt: skip
    return out


BUILDS = tuple(
    Build(
        f"narrow_product-{bits}-bits-{rows}", _narrow, config,
        {"rows": "*bf16", "weight": "*u8" if bits == 4 else "*i8", "scale": "*bf16", "out": "*bf16", "R": "i32",
         "N": "i32/16", "D": "i32/16"},
        {"FOUR": bits == 4, "UPCAST": False},
    )
    for bits in (8, 4) for rows, config in _CONFIGS.items()
)  # fmt: skip
