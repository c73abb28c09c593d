"""A draw from softmax(z), z [..., V], by the Gumbel-max trick: argmax_v (z_v + g_v), in one pass over the row.

The noise is g_v = -log(-log(u_v)), where u_v is the counter-based noise of ``dllm.common.noise``: a function of v and
of the keys seed, position and turn, mixed into ``state``. As separate operations on float64 this takes some 25 passes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common import noise
from dllm.kernels.jit import Build, LaunchConfig, contiguous_rows, each_type, jit, processors, tl
from dllm.kernels.row_statistics import split_count

_CONFIG = LaunchConfig({"BLOCK": 1024}, warps=4)
CACHED = 1 << 18  # numbers, 2 MB as float64
_HASH = {"GOLDEN": noise.GOLDEN, "MIX1": noise.MIX1, "MIX2": noise.MIX2}


def reference(logits: Tensor, state: Tensor, random: Tensor) -> Tensor:
    """Ids int64 [...] drawn from softmax(logits) [..., V], of equals the lowest. state int64 [...]: of the noise. Where
    ``random`` [...] does not hold, the argmax of the logits alone."""
    vocabulary = torch.arange(logits.shape[-1], device=logits.device)
    noisy = logits + noise.gumbel_of(noise.mixed(vocabulary, after=state.unsqueeze(-1)))
    return torch.where(random.unsqueeze(-1), noisy, logits.double()).argmax(-1)


@jit()
def shift_right(x, BITS: tl.constexpr):
    """Unsigned shift of int64."""
    return (x >> BITS) & ((1 << (64 - BITS)) - 1)


@jit("splits")
def _gumbel_argmax(logits, state, random, values, index, V, stride, splits, GOLDEN: tl.constexpr, MIX1: tl.constexpr,
                   MIX2: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """One program per row and split of the vocabulary."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    width = tl.cdiv(tl.cdiv(V, BLOCK), splits) * BLOCK
    end = tl.minimum((part + 1) * width, V)
    lanes = tl.arange(0, BLOCK)
    key, noisy = tl.load(state + row), tl.load(random + row) != 0
    best, at = tl.full([BLOCK], -float("inf"), tl.float64), tl.zeros([BLOCK], tl.int32) + part * width
    for start in range(part * width, end, BLOCK):
        columns = start + lanes
        z = tl.load(logits + row * stride + columns, mask=columns < end, other=-float("inf")).to(tl.float64)
        x = key + (columns.to(tl.int64) + 1) * GOLDEN
        x = (x ^ shift_right(x, 30)) * MIX1
        x = (x ^ shift_right(x, 27)) * MIX2
        x = x ^ shift_right(x, 31)
        u = (shift_right(x, 11).to(tl.float64) + 0.5) * 1.1102230246251565e-16
        z = tl.where(noisy, z - tl.log(-tl.log(u)), z)
        z = tl.where(columns < end, z, -float("inf"))
        at = tl.where(z > best, columns, at)
        best = tl.maximum(best, z)
    most = tl.max(best, axis=0)
    tl.store(values + row * splits + part, most)
    tl.store(index + row * splits + part, tl.min(tl.where(best == most, at, 2147483647), axis=0))


def in_cache(logits: Tensor, state: Tensor, random: Tensor) -> Tensor:
    """``reference``, a few rows at a time, so that what is made between stays in a CPU's cache: 64 rows of 262,144
    logits take 0.3 s on one core instead of 1.9."""
    rows = max(1, CACHED // max(1, logits.shape[-1]))
    if state.numel() <= rows:
        return reference(logits, state, random)
    parts = zip(
        logits.flatten(0, -2).split(rows), state.flatten().split(rows), random.flatten().split(rows), strict=True
    )
    return torch.cat([reference(*part) for part in parts]).view(state.shape)


def gumbel_argmax(logits: Tensor, state: Tensor, random: Tensor, triton: bool = False) -> Tensor:
    """``reference``. triton: the kernel; its logarithm may differ in the last bit of float64."""
    if not triton or logits.numel() == 0:
        return in_cache(logits, state, random) if logits.device.type == "cpu" else reference(logits, state, random)
    rows = contiguous_rows(logits)
    count, vocabulary = rows.shape
    splits = split_count(count, vocabulary, _CONFIG.blocks["BLOCK"], processors(rows.device))
    values = torch.empty(count, splits, dtype=torch.float64, device=rows.device)
    index = torch.empty(count, splits, dtype=torch.int32, device=rows.device)
    tensors = rows, state.reshape(-1).contiguous(), random.reshape(-1).to(torch.int8).contiguous(), values, index
    stride = rows.stride(0) if count > 1 else vocabulary
    _gumbel_argmax[(count, splits)](*tensors, vocabulary, stride, splits, **_HASH, **_CONFIG.arguments)
    ids = index.gather(1, values.argmax(1, keepdim=True)).long()
    return ids.view(logits.shape[:-1])


BUILDS = tuple(
    Build(
        f"gumbel_argmax-{kind}", _gumbel_argmax, _CONFIG,
        each_type({"logits": f"*{kind}", "state": "*i64", "random": "*i8", "values": "*fp64", "index": "*i32",
                   "V stride": "i32/16", "splits": "i32"}), _HASH,
    )
    for kind in ("fp32", "fp64")
)  # fmt: skip
