"""Rows multiplied with the matrix of their group in eight or four bits: y_i = W_g x_i, W_g = (q s)_g, for every row i.

Rows x [T, D] lie sorted by group and ``ends`` [E] is the row after the last one of each, as in ``grouped_product``,
whose tiles these are. W is as ``narrow_product`` has it for each group: q [E, N, D] in int8 with scales [E, N, 1], or
four bits with a scale and what a step of 0 stands for, [E, N, D / 32, 2]. Tiles of weights are widened as they are
read, at any number of rows: widened whole, a layer of LLaDA2-mini (256 experts) would take 1.6 GB for a moment.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.kernels.grouped_product import by_group, most_tiles, own_tile
from dllm.kernels.jit import Build, LaunchConfig, each_type, interpreted, jit, power_of_two, tl
from dllm.kernels.narrow_product import GROUP, PAIRED, narrow_tile
from dllm.kernels.narrow_product import reference as narrow_reference

# By rows of a group, on average. 64 outputs a program, twice those of ``narrow_product``: that many Hopper's matrix
# instruction takes, and the groups together have thousands of programs already, and each reads ``ends`` first.
_CONFIGS = {
    rows: LaunchConfig({"BLOCK_R": rows, "BLOCK_N": 64, "BLOCK_D": PAIRED}, warps=4, stages=stages)
    for rows, stages in ((16, 4), (32, 4), (64, 3))
}


def reference(rows: Tensor, weight: Tensor, scale: Tensor, ends: Tensor) -> Tensor:
    """[T, N] from rows [T, D], narrow weights of E groups, their scales, and ends [E], group by group."""
    product = lambda group, part: narrow_reference(part, weight[group], scale[group])  # noqa: E731
    return by_group(product, rows, ends, weight.shape[1])


@jit("T")
def _grouped_narrow(rows, weight, scale, ends, out, T, E, N, D, FOUR: tl.constexpr, UPCAST: tl.constexpr,
                    GROUPED: tl.constexpr, GROUPS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
                    BLOCK_D: tl.constexpr):  # fmt: skip
    """One program per tile of a group's rows and BLOCK_N outputs."""
    group, first, last = own_tile(ends, T, E, GROUPS, BLOCK_R)
    if group < E:
        row = first + tl.arange(0, BLOCK_R)
        output = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        matrix = group.to(tl.int64) * N
        own = weight + matrix * (tl.cdiv(D, BLOCK_D) * (BLOCK_D // 2) if FOUR else D)
        sizes = scale + matrix * (D // GROUPED * 2 if FOUR else 1)
        total = narrow_tile(rows, own, sizes, row, last, output, N, D, FOUR, UPCAST, GROUPED, BLOCK_D)
        tl.store(
            out + row[None, :].to(tl.int64) * N + output[:, None],
            total.to(out.dtype.element_ty),
            mask=(row[None, :] < last) & (output[:, None] < N),
        )


def grouped_narrow_product(rows: Tensor, weight: Tensor, scale: Tensor, ends: Tensor, triton: bool = False) -> Tensor:
    """``reference``. triton: the kernel, which asks the host nothing, equal up to the order of the sums."""
    if not triton:
        return reference(rows, weight, scale, ends)
    rows, (groups, outputs) = rows.contiguous(), weight.shape[:2]
    out = rows.new_empty(len(rows), outputs)
    if len(rows):
        config = _CONFIGS[min(64, max(16, power_of_two(len(rows) // groups)))]
        _grouped_narrow[(most_tiles(len(rows), groups, config), -(-outputs // config.blocks["BLOCK_N"]))](
            rows, weight, scale, ends, out, len(rows), groups, outputs, rows.shape[1],
            FOUR=weight.dtype == torch.uint8, UPCAST=interpreted() and rows.dtype == torch.bfloat16, GROUPED=GROUP,
            GROUPS=power_of_two(groups), **config.arguments,
        )  # fmt: skip
    return out


BUILDS = tuple(
    Build(
        f"grouped_narrow_product-{bits}-bits-{rows}",
        _grouped_narrow,
        config,
        {"weight": "*u8" if bits == 4 else "*i8"}
        | each_type({"rows scale out": "*bf16", "ends": "*i64", "T": "i32", "E N D": "i32/16"}),
        {"FOUR": bits == 4, "UPCAST": False, "GROUPED": GROUP, "GROUPS": 256},
        wgmma=True,
    )
    for bits in (8, 4)
    for rows, config in _CONFIGS.items()
)
