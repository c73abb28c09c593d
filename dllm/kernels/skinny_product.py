"""Few rows times plain weights: y = x W^T, rows x [R, D] (R at most 64), weights W [N, D], y [R, N]. In papers: skinny
GEMM.

Such a product takes the time of reading W. On an H200 the library read at 84 % of the rate of a copy at 16 to 64 rows,
and the fused head, which streams its matrix through tiles like these, at 92 %. Nothing of the package calls this yet:
``experiments.gpu_hour`` measures whole turns with and without it (switch "own products").
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from dllm.kernels.jit import Build, LaunchConfig, interpreted, jit, power_of_two, tl

SKINNY_ROWS = 64
# By rows. 32 outputs a program, so that 4,096 of them keep 128 processors reading, each with 32 KB under way.
_CONFIGS = {
    rows: LaunchConfig({"BLOCK_R": rows, "BLOCK_N": 32, "BLOCK_D": 128}, warps=4, stages=stages)
    for rows, stages in ((16, 5), (32, 4), (64, 3))  # at 64 rows a fourth stage is more than sm_80 has for two programs
}


def reference(rows: Tensor, weight: Tensor) -> Tensor:
    """x W^T."""
    return F.linear(rows, weight)


@jit("R")
def _skinny(rows, weight, out, R, N, D, WIDE: tl.constexpr, UPCAST: tl.constexpr,
            BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """One program per tile of outputs, for all rows. UPCAST: widen before the product, because the interpreter
    multiplies the bits of bfloat16 numbers."""
    KIND: tl.constexpr = tl.float64 if WIDE else tl.float32
    row, output = tl.arange(0, BLOCK_R), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_D)
    source = weight + output[:, None].to(tl.int64) * D + depth[None, :]
    given = rows + row[None, :] * D + depth[:, None]
    total = tl.zeros([BLOCK_N, BLOCK_R], KIND)
    for chunk in range(0, D, BLOCK_D):
        inside = depth < D - chunk
        w = tl.load(source + chunk, mask=(output[:, None] < N) & inside[None, :], other=0.0)
        x = tl.load(given + chunk, mask=(row[None, :] < R) & inside[:, None], other=0.0)
        if UPCAST:
            w, x = w.to(KIND), x.to(KIND)
        total = tl.dot(w, x, total, input_precision="ieee", out_dtype=KIND)
    tl.store(out + row[None, :].to(tl.int64) * N + output[:, None], total.to(out.dtype.element_ty),
             mask=(row[None, :] < R) & (output[:, None] < N))  # fmt: skip


def skinny_product(rows: Tensor, weight: Tensor, triton: bool = False) -> Tensor:
    """``reference``. triton: the kernel up to ``SKINNY_ROWS`` rows, equal up to the order of the sums."""
    if not triton or len(rows) > SKINNY_ROWS:
        return reference(rows, weight)
    rows, (count, width) = rows.contiguous(), rows.shape
    out = rows.new_empty(count, len(weight))
    if count:
        config = _CONFIGS[max(16, power_of_two(count))]
        kinds = {"WIDE": rows.itemsize == 8, "UPCAST": interpreted() and rows.itemsize == 2}
        programs = -(-len(weight) // config.blocks["BLOCK_N"])
        _skinny[(programs,)](rows, weight, out, count, len(weight), width, **kinds, **config.arguments)
    return out


BUILDS = tuple(
    Build(
        f"skinny_product-bf16-{rows}", _skinny, config,
        {"rows": "*bf16", "weight": "*bf16", "out": "*bf16", "R": "i32", "N": "i32/16", "D": "i32/16"},
        {"WIDE": False, "UPCAST": False},
    )
    for rows, config in _CONFIGS.items()
)  # fmt: skip
