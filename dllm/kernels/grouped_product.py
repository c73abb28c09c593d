"""Rows multiplied with the matrix of their group: y_i = W_g x_i for every row i of group g (routed experts).

Rows x [T, D] lie sorted by group, W is [E, N, D], and ``ends`` [E] is the row after the last one of each group. Only
the device knows which rows a group has. Taking the groups one by one costs a question to it in every layer, and a few
launches for each group. Here as many programs start as tiles may be needed, each finds its group in ``ends``, and those
without one return. The matrices of groups without rows are not read.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.kernels.jit import Build, LaunchConfig, each_type, interpreted, jit, power_of_two, tl

_CONFIGS = {  # by rows of a group, on average
    16: LaunchConfig({"BLOCK_R": 16, "BLOCK_N": 128, "BLOCK_D": 64}, warps=4, stages=3),
    32: LaunchConfig({"BLOCK_R": 32, "BLOCK_N": 128, "BLOCK_D": 64}, warps=4, stages=3),
    64: LaunchConfig({"BLOCK_R": 64, "BLOCK_N": 128, "BLOCK_D": 64}, warps=4, stages=3),
}


def by_group(product: Callable[[int, Tensor], Tensor], rows: Tensor, ends: Tensor, width: int) -> Tensor:
    """[T, ``width``] from rows [T, D] and ends [E]: the ``product`` of each group that has rows, by its number."""
    out, begin = rows.new_empty(len(rows), width), 0
    for group, end in enumerate(ends.tolist()):
        if end > begin:
            out[begin:end] = product(group, rows[begin:end])
        begin = end
    return out


def reference(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """[T, N] from rows [T, D], weight [E, N, D] and ends [E], group by group."""
    return by_group(lambda group, part: F.linear(part, weight[group]), rows, ends, weight.shape[1])


@jit()
def own_tile(ends, T, E, GROUPS: tl.constexpr, BLOCK_R: tl.constexpr):
    """The group of this program, its first row, and the one after the group's last; a group of E or more: there is
    none. GROUPS: E as a power of two."""
    lane = tl.arange(0, GROUPS)
    end = tl.load(ends + lane, mask=lane < E, other=T)
    begin = tl.load(ends + lane - 1, mask=(lane > 0) & (lane < E), other=0)
    begin = tl.where(lane < E, begin, T)
    tiles = tl.cdiv(end - begin, BLOCK_R)
    behind = tl.cumsum(tiles, axis=0)
    group = tl.sum((behind <= tl.program_id(0)).to(tl.int32), axis=0)
    own = lane == group
    first = tl.sum(tl.where(own, begin + (tl.program_id(0) - behind + tiles) * BLOCK_R, 0), axis=0)
    last = tl.sum(tl.where(own, end, 0), axis=0)
    return group, first, last


@jit("T")
def _grouped(rows, weight, ends, out, T, E, N, D, UPCAST: tl.constexpr, WIDE: tl.constexpr, GROUPS: tl.constexpr,
             BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """One program per tile of a group's rows and BLOCK_N outputs. UPCAST: widen before the product, because the
    interpreter multiplies the bits of bfloat16 numbers."""
    KIND: tl.constexpr = tl.float64 if WIDE else tl.float32
    group, first, last = own_tile(ends, T, E, GROUPS, BLOCK_R)
    if group < E:
        row = first + tl.arange(0, BLOCK_R)
        output = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        depth = tl.arange(0, BLOCK_D)
        total = tl.zeros([BLOCK_N, BLOCK_R], KIND)
        source = weight + group.to(tl.int64) * N * D
        for chunk in range(0, D, BLOCK_D):
            inside = chunk + depth < D
            w = tl.load(
                source + output[:, None].to(tl.int64) * D + chunk + depth[None, :],
                mask=(output[:, None] < N) & inside[None, :],
                other=0.0,
            )
            x = tl.load(
                rows + row[None, :].to(tl.int64) * D + chunk + depth[:, None],
                mask=(row[None, :] < last) & inside[:, None],
                other=0.0,
            )
            if UPCAST:
                w, x = w.to(KIND), x.to(KIND)
            total = tl.dot(w, x, total, input_precision="ieee", out_dtype=KIND)
        tl.store(
            out + row[None, :].to(tl.int64) * N + output[:, None],
            total.to(out.dtype.element_ty),
            mask=(row[None, :] < last) & (output[:, None] < N),
        )


def grouped_product(rows: Tensor, weight: Tensor, ends: Tensor, triton: bool = False) -> Tensor:
    """``reference``. triton: the kernel, which asks the host nothing, equal up to the order of the sums."""
    if not triton:
        return reference(rows, weight, ends)
    rows, (groups, outputs, width) = rows.contiguous(), weight.shape
    out = rows.new_empty(len(rows), outputs)
    if len(rows):
        config = _CONFIGS[min(64, max(16, power_of_two(len(rows) // groups)))]
        grid = most_tiles(len(rows), groups, config), -(-outputs // config.blocks["BLOCK_N"])
        upcast, wide = interpreted() and weight.dtype == torch.bfloat16, weight.dtype == torch.float64
        constants = {"UPCAST": upcast, "WIDE": wide, "GROUPS": power_of_two(groups)}
        _grouped[grid](rows, weight, ends, out, len(rows), groups, outputs, width, **constants, **config.arguments)
    return out


def most_tiles(count: int, groups: int, config: LaunchConfig) -> int:
    """How many tiles ``count`` rows may need at most, however they are spread over the groups."""
    return -(-count // config.blocks["BLOCK_R"]) + min(groups, count)


BUILDS = tuple(
    Build(
        f"grouped_product-bf16-{rows}", _grouped, config,
        each_type({"rows weight out": "*bf16", "ends": "*i64", "T": "i32", "E N D": "i32/16"}),
        {"UPCAST": False, "WIDE": False, "GROUPS": 64}, wgmma=True,
    )
    for rows, config in _CONFIGS.items()
)  # fmt: skip
