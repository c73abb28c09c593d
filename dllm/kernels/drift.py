"""Elastic-Cache's two reductions over attention weights of a few rows (arXiv 2510.14973), in one read each.

Fused attention returns no weights, but the drift test wants those of the tracked rows and the tracking sums those of
the window (``dllm.cache.drift``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllm.kernels.jit import Build, Shape, jit, power_of_two

if TYPE_CHECKING:
    import triton.language as tl

ALIKE = Shape({"BLOCK": 32}, warps=4)  # times 32 heads, of two sets: with more keys at once registers spill
SUMS = Shape({"ROWS": 32, "BLOCK": 64}, warps=4)


def similarity_reference(old: Tensor, new: Tensor, keys: Tensor, axis: str) -> Tensor:
    """How alike two sets of attention rows are [B, m], 1 for the same.

    old, new: softmax weights [B, H, m, S], 0 at hidden keys; keys [B]: how many are visible. axis ``heads``: the cosine
    over the heads at every key, averaged over the visible keys (the published code); ``keys``: the cosine over the
    keys of every head, averaged (the paper's formula). Norms count as 1e-8 at least.
    """
    if axis == "keys":
        return cosine(old, new, 3).mean(1)
    return cosine(old, new, 1).sum(-1) / keys[:, None]  # where both weights are 0, so is the cosine


def cosine(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """``F.cosine_similarity``, without its vector norms, which on a CPU take 20 times as long over an outer axis."""
    squares = [(x * x).sum(dim).clamp_(min=1e-16) for x in (a, b)]
    return (a * b).sum(dim) / (squares[0] * squares[1]).sqrt_()


@jit("S", "H", "M")
def _similarity(old, new, seen, out, S, H, M, HEADS: tl.constexpr, BLOCK: tl.constexpr, BY_KEY: tl.constexpr):
    """One program per tracked row, of M in every batch row. BY_KEY: cosines over the heads, one for each key."""
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)[None, :]
    head = tl.arange(0, HEADS)[:, None]
    base, real = ((row // M * H + head) * M + row % M) * S, head < H
    dot, norm_a = tl.zeros([HEADS, 1], tl.float32), tl.zeros([HEADS, 1], tl.float32)
    norm_b, cosines = norm_a, tl.zeros([1, 1], tl.float32)
    for start in range(0, S, BLOCK):
        key = start + lane
        a = tl.load(old + base + key, mask=real & (key < S), other=0.0).to(tl.float32)
        b = tl.load(new + base + key, mask=real & (key < S), other=0.0).to(tl.float32)
        if BY_KEY:
            d, n, k = (tl.sum(a * b, axis=0, keep_dims=True), tl.sum(a * a, axis=0, keep_dims=True),
                       tl.sum(b * b, axis=0, keep_dims=True))  # fmt: skip
            cosine = d / (tl.maximum(tl.sqrt(n), 1e-8) * tl.maximum(tl.sqrt(k), 1e-8))
            cosines += tl.sum(cosine, axis=1, keep_dims=True)
        else:
            dot += tl.sum(a * b, axis=1, keep_dims=True)
            norm_a += tl.sum(a * a, axis=1, keep_dims=True)
            norm_b += tl.sum(b * b, axis=1, keep_dims=True)
    if BY_KEY:
        result = cosines / tl.load(seen + row // M).to(tl.float32)
    else:
        cosine = dot / (tl.maximum(tl.sqrt(norm_a), 1e-8) * tl.maximum(tl.sqrt(norm_b), 1e-8))
        result = tl.sum(cosine, axis=0, keep_dims=True) / H
    tl.store(out + row + tl.zeros([1, 1], tl.int64), result)


def similarity(old: Tensor, new: Tensor, keys: Tensor, axis: str, triton: bool = False) -> Tensor:
    """``similarity_reference``, by the kernel when ``triton`` (float32)."""
    if not triton:
        return similarity_reference(old, new, keys, axis)
    rows, heads, tracked, length = old.shape
    out = torch.empty(rows, tracked, dtype=torch.float32, device=old.device)
    if out.numel():
        _similarity[(out.numel(),)](
            old.contiguous(), new.contiguous(), keys.contiguous(), out, length, heads, tracked,
            HEADS=power_of_two(heads), BY_KEY=axis == "heads", **ALIKE.arguments,
        )  # fmt: skip
    return out


def received_reference(weights: Tensor, real: Tensor) -> Tensor:
    """Attention that every key receives [B, S]: weights [B, H, m, S] summed over heads and ``real`` rows [B, m]."""
    return (weights.sum(1) * real[:, :, None]).sum(1)


@jit("R", "M", "S")
def _received(weights, real, out, R, M, S, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """One program per batch row and block of keys, which adds up all R = H M rows: no atomics, always the same sum."""
    batch = tl.program_id(0).to(tl.int64)
    key, line = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :], tl.arange(0, ROWS)[:, None]
    total = tl.zeros([1, BLOCK], tl.float32)
    for start in range(0, R, ROWS):
        row = start + line
        counts = tl.load(real + batch * M + row % M, mask=row < R, other=0) != 0
        place = weights + (batch * R + row) * S + key
        total += tl.sum(tl.load(place, mask=counts & (key < S), other=0.0).to(tl.float32), axis=0, keep_dims=True)
    tl.store(out + batch * S + key, total, mask=key < S)


def received(weights: Tensor, real: Tensor, triton: bool = False) -> Tensor:
    """``received_reference``, by the kernel when ``triton`` (float32)."""
    if not triton:
        return received_reference(weights, real)
    batch, heads, looking, keys = weights.shape
    out = torch.zeros(batch, keys, dtype=torch.float32, device=weights.device)
    if weights.numel():
        _received[(batch, -(-keys // SUMS.blocks["BLOCK"]))](
            weights.contiguous(), real.to(torch.int8).contiguous(), out, heads * looking, looking, keys,
            **SUMS.arguments,
        )  # fmt: skip
    return out


BUILDS = (
    *(Build(f"drift.similarity-{heads}-{by_key}", _similarity,
            {"old": "*fp32", "new": "*fp32", "seen": "*i64", "out": "*fp32", "S": "i32", "H": "i32", "M": "i32"},
            {"HEADS": heads, "BY_KEY": by_key, **ALIKE.blocks}, ALIKE.warps, ALIKE.stages)
      for heads, by_key in ((32, True), (32, False), (16, True))),
    Build("drift.received", _received,
          {"weights": "*fp32", "real": "*i8", "out": "*fp32", "R": "i32", "M": "i32", "S": "i32"},
          SUMS.blocks, SUMS.warps, SUMS.stages),
)  # fmt: skip
