"""Rows multiplied with weights in eight or four bits: y = x (q s)^T, widened tile by tile.

Rows x are [R, D]. Eight bits: q [N, D] in int8, one scale s [N, 1] per output. Four bits: a scale and what a step of 0
stands for, [N, D / 32, 2], per 32 columns of an output, w = q s + z, and q in uint8: of 128 columns byte j of 64 holds
columns j (low) and 64 + j (high), each plus 8; what the last 128 lack is filled up. The scales are rounded first and
the weights by them, so that a weight is met to within half a step.

Sixteen steps from the least weight of 32 to the largest: on weights of a normal distribution the error is 7.8 % of
them, of heavy tails (Student's t of 5) 9.0 %. 128 columns with one scale of -7 to 7 have 11.8 and 17.2 %, 128 with
scale and minimum 10.0 and 13.2 % (``experiments.compare.rounding``, which has the models' answers, too).

With few rows a product takes the time of reading the weights, here a half or a quarter of bfloat16's bytes. PyTorch
2.13 has nothing for that on a GPU: what torch.compile makes of torchao's int8 is ``_weight_int8pack_mm``, one thread
per output in float32 (aten/src/ATen/native/cuda/int8mm.cu), and torchao's int4 kernel reads the weights once per 16
rows. Above 128 rows the product computes longer than it reads: the library multiplies with the weights widened whole.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.kernels.jit import Build, LaunchConfig, each_type, interpreted, jit, power_of_two, tl

GROUP = 32  # columns with one scale, in four bits
PAIRED = 128  # columns whose bytes are together, in four bits
OUTPUTS_AT_ONCE = 64  # outputs that are rounded together
MOST_ROWS = 128  # the kernel's; as many as the fused head takes
# By rows. 32 outputs a program, so that 4,096 of them keep 128 processors reading; with five stages each has 16 KB of
# eight-bit weights under way, about what an H100's memory wants of one (3.35 TB/s, 0.7 us, 132 processors: 18 KB).
_CONFIGS = {
    rows: LaunchConfig({"BLOCK_R": rows, "BLOCK_N": 32, "BLOCK_D": PAIRED}, warps=4, stages=stages)
    for rows, stages in ((16, 5), (32, 5), (64, 4))  # at 64 rows a fifth stage is more than gfx942's shared memory
}


def narrowed(weight: Tensor, bits: int, largest: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weights [N, D] rounded to the nearest of ``bits`` (8 or 4) bits, and their scales in the weights' dtype. largest
    [N]: as in ``rounded_steps``."""
    return by_outputs(lambda part, peak: _narrowed(part, bits, peak), weight, largest)


def by_outputs(
    narrow: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]], weight: Tensor, largest: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Weights and scales of a few outputs at a time: what that takes stays in a CPU's cache, four times as fast."""
    parts = weight.split(OUTPUTS_AT_ONCE)
    peaks = [None] * len(parts) if largest is None else list(largest.split(OUTPUTS_AT_ONCE))
    steps, scales = zip(*map(narrow, parts, peaks), strict=True)
    return torch.cat(steps), torch.cat(scales)


def _narrowed(weight: Tensor, bits: int, largest: Tensor | None) -> tuple[Tensor, Tensor]:
    steps, scale = rounded_steps(weight, bits, largest)
    return steps if bits == 8 else in_bytes(steps), scale


def rounded_steps(weight: Tensor, bits: int, largest: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The steps [N, D] that are nearest to weights, and scales [N, 1] or, in four bits, [N, G, 2]. largest [N]: the
    largest magnitude of each output, in eight bits, where the weights are some columns of all (None: theirs)."""
    groups = weight.float().view(len(weight), -1, GROUP if bits == 4 else weight.shape[1])
    low, high = torch.aminmax(groups, dim=-1, keepdim=True)
    if bits == 8:
        peak = torch.maximum(high, -low) if largest is None else largest.view(-1, 1, 1)
        scale = _rounded(peak / 127, weight.dtype)
        steps = (groups / scale).round_().clamp_(-127, 127)
        return steps.to(torch.int8).flatten(1), scale.to(weight.dtype).flatten(1)
    scale = _rounded((high - low) / 15, weight.dtype)
    zero = (low + 8 * scale).to(weight.dtype)
    steps = groups.sub(zero).div_(scale).round_().clamp_(-8, 7)
    return steps.to(torch.int8).flatten(1), torch.cat([scale.to(weight.dtype), zero], -1)


def _rounded(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Scales in float32 that ``dtype`` has, above 0."""
    return scale.clamp_min(torch.finfo(torch.float32).tiny).to(dtype).float()


def in_bytes(steps: Tensor) -> Tensor:
    """Bytes of steps [N, D], from -8 to 7: 64 for each 128 columns that are begun."""
    whole = F.pad((steps + 8).to(torch.uint8), (0, -steps.shape[1] % PAIRED))
    low, high = whole.view(len(steps), -1, PAIRED).chunk(2, -1)
    return (low | high << 4).flatten(1)


def four_bit_steps(weight: Tensor, width: int) -> Tensor:
    """The steps [N, D], from -8 to 7, of bytes of ``width`` D columns."""
    pairs = weight.view(len(weight), -1, PAIRED // 2)
    return torch.cat([pairs & 15, pairs >> 4], -1).flatten(1)[:, :width].to(torch.int8) - 8


def widened(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The weights [N, D] that narrow ones stand for."""
    if weight.dtype == torch.int8:
        return weight.to(dtype) * scale.to(dtype)
    steps = four_bit_steps(weight, scale.shape[1] * GROUP).view(len(weight), -1, GROUP)
    steps = steps.to(torch.promote_types(dtype, torch.float32))
    size, zero = scale.to(steps.dtype).split(1, -1)
    return (steps * size + zero).flatten(1).to(dtype)


def reference(rows: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """[R, N] from rows [R, D], narrow weights and their scales, with sums in float32."""
    return F.linear(rows.float(), widened(weight, scale, torch.float32)).to(rows.dtype)


@jit()
def _wide(steps, sizes, known, GROUPED: tl.constexpr):
    """The weights [N, D] in float32 of steps from 0 to 15. sizes, known [N, D / GROUPED]: where their scales are, and
    whether there are any."""
    size = tl.load(sizes, mask=known, other=0.0).to(tl.float32)
    zero = tl.load(sizes + 1, mask=known, other=0.0).to(tl.float32)
    N: tl.constexpr = steps.shape[0]
    G: tl.constexpr = sizes.shape[1]
    grouped = tl.reshape(steps, (N, G, GROUPED)).to(tl.float32) - 8.0
    return tl.reshape(grouped * size[:, :, None] + zero[:, :, None], (N, G * GROUPED))


@jit()
def narrow_tile(rows, weight, scale, row, behind, output, N, D, FOUR: tl.constexpr, UPCAST: tl.constexpr,
                GROUPED: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """The product [outputs, rows] in float32 of a tile of rows before ``behind`` with weights [N, D], widened as they
    are read. UPCAST: widen rows, too, because the interpreter multiplies the bits of bfloat16 numbers."""
    KIND: tl.constexpr = tl.float32 if UPCAST else rows.dtype.element_ty
    WIDTH: tl.constexpr = BLOCK_D // 2 if FOUR else BLOCK_D
    stride = tl.cdiv(D, BLOCK_D) * WIDTH if FOUR else D
    depth, group = tl.arange(0, WIDTH), tl.arange(0, WIDTH // GROUPED)
    here, known = row[None, :] < behind, output[:, None] < N
    sizes = scale + (output[:, None].to(tl.int64) * (D // GROUPED) + group[None, :]) * 2
    source = weight + output[:, None].to(tl.int64) * stride + depth[None, :]
    inputs = rows + row[None, :].to(tl.int64) * D + depth[:, None]
    total = tl.zeros([output.shape[0], row.shape[0]], tl.float32)
    for chunk in range(tl.cdiv(D, BLOCK_D)):
        left = D - chunk * BLOCK_D
        w = tl.load(source + chunk * WIDTH, mask=known & (depth[None, :] < left), other=0)
        x = tl.load(inputs + chunk * BLOCK_D, mask=here & (depth[:, None] < left), other=0.0).to(KIND)
        if FOUR:
            left -= WIDTH
            high = tl.load(inputs + chunk * BLOCK_D + WIDTH, mask=here & (depth[:, None] < left), other=0.0).to(KIND)
            size = sizes + chunk * (2 * BLOCK_D // GROUPED)
            first = known & (group[None, :] * GROUPED < left + WIDTH)
            total = tl.dot(_wide(w & 15, size, first, GROUPED).to(KIND), x, total, input_precision="ieee")
            size, second = size + 2 * WIDTH // GROUPED, known & (group[None, :] * GROUPED < left)
            total = tl.dot(_wide(w >> 4, size, second, GROUPED).to(KIND), high, total, input_precision="ieee")
        else:
            total = tl.dot(w.to(KIND), x, total, input_precision="ieee")
    if not FOUR:
        total *= tl.load(scale + output, mask=output < N, other=0.0).to(tl.float32)[:, None]
    return total


@jit("R")
def _narrow(rows, weight, scale, out, R, N, D, FOUR: tl.constexpr, UPCAST: tl.constexpr,
            GROUPED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """One program per tile of BLOCK_N outputs and BLOCK_R rows; those of one tile of weights follow each other."""
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    output = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = narrow_tile(rows, weight, scale, row, R, output, N, D, FOUR, UPCAST, GROUPED, BLOCK_D)
    tl.store(
        out + row[None, :].to(tl.int64) * N + output[:, None],
        total.to(out.dtype.element_ty),
        mask=(row[None, :] < R) & (output[:, None] < N),
    )


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
        grid = -(-count // config.blocks["BLOCK_R"]), -(-len(weight) // config.blocks["BLOCK_N"])
        four, upcast = weight.dtype == torch.uint8, interpreted() and rows.dtype == torch.bfloat16
        sizes, constants = (count, len(weight), width), {"FOUR": four, "UPCAST": upcast, "GROUPED": GROUP}
        _narrow[grid](rows, weight, scale, out, *sizes, **constants, **config.arguments)
    return out


BUILDS = tuple(
    Build(
        f"narrow_product-{bits}-bits-{rows}",
        _narrow,
        config,
        each_type({"rows scale out": "*bf16", "weight": "*u8" if bits == 4 else "*i8", "R": "i32", "N D": "i32/16"}),
        {"FOUR": bits == 4, "UPCAST": False, "GROUPED": GROUP},
    )
    for bits in (8, 4)
    for rows, config in _CONFIGS.items()
)
