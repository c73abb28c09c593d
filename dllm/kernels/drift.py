"""Elastic-Cache's two reductions over attention rows (arXiv 2510.14973), without storing a softmax.

Fused attention returns no weights, but only a few rows need them: the tracked ones for the drift test, those of the
window for the tracking sums. Their scores are one small matrix product; these kernels do the rest in one read each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllm.kernels.jit import Build, Shape, jit, power_of_two

if TYPE_CHECKING:
    import triton.language as tl

KEYS = Shape({"BLOCK": 256}, warps=4)
ALIKE = Shape({"BLOCK": 32}, warps=4)  # times 32 heads, of two sets: with more keys at once registers spill


def similarity_reference(old: Tensor, new: Tensor, axis: str) -> Tensor:
    """How alike two sets of attention rows are [B, m], 1 for the same.

    old, new: scores [B, H, m, S] before the softmax, -inf at hidden keys. axis ``heads``: the cosine over the heads at
    every key, averaged over the visible keys (the published code); ``keys``: the cosine over the keys of every head,
    averaged (the paper's formula). Norms count as 1e-8 at least. Rows that see no key have similarity 1.
    """
    a, b = old.softmax(-1), new.softmax(-1)
    visible = (old[:, 0] > -torch.inf).sum(-1)  # [B, m]: a key is hidden from all heads or from none
    # Both weights of a hidden key are 0, and so is its cosine.
    out = cosine(a, b, 3).mean(1) if axis == "keys" else cosine(a, b, 1).sum(-1) / visible
    return torch.where(visible > 0, out, 1.0)


def cosine(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """``F.cosine_similarity``, without its vector norms, which on a CPU take 20 times as long over an outer axis."""
    squares = [(x * x).sum(dim).clamp_(min=1e-16) for x in (a, b)]
    return (a * b).sum(dim) / (squares[0] * squares[1]).sqrt_()


@jit
def _sums(scores, base, lane, S, real, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """Largest score and sum of exp(score - largest) [HEADS, 1] of the rows that begin at ``base`` [HEADS, 1]."""
    m, total = tl.full([HEADS, 1], -1e30, tl.float32), tl.zeros([HEADS, 1], tl.float32)
    for start in range(0, S, BLOCK):
        key = start + lane
        z = tl.load(scores + base + key, mask=real & (key < S), other=-float("inf"))
        z = tl.maximum(z.to(tl.float32), -1e30)
        best = tl.maximum(m, tl.max(z, axis=1, keep_dims=True))
        total = total * tl.exp(m - best) + tl.sum(tl.where(z > -1e30, tl.exp(z - best), 0.0), axis=1, keep_dims=True)
        m = best
    return m, tl.maximum(total, 1e-30)


@jit
def _weights(scores, place, inside, m, total):
    """Softmax weights at ``place``, and which of them are visible."""
    z = tl.maximum(tl.load(scores + place, mask=inside, other=-float("inf")).to(tl.float32), -1e30)
    return tl.where(z > -1e30, tl.exp(z - m) / total, 0.0), z > -1e30


@jit
def _similarity(old, new, out, S, H, M, HEADS: tl.constexpr, BLOCK: tl.constexpr, BY_KEY: tl.constexpr):
    """One program per tracked row, of M in every batch row. BY_KEY: cosines over the heads, one for each key."""
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)[None, :]
    head = tl.arange(0, HEADS)[:, None]
    base, real = ((row // M * H + head) * M + row % M) * S, head < H
    m_old, total_old = _sums(old, base, lane, S, real, HEADS, BLOCK)
    m_new, total_new = _sums(new, base, lane, S, real, HEADS, BLOCK)
    dot, norm_a = tl.zeros([HEADS, 1], tl.float32), tl.zeros([HEADS, 1], tl.float32)
    norm_b, cosines, seen = norm_a, tl.zeros([1, 1], tl.float32), tl.zeros([1, 1], tl.float32)
    for start in range(0, S, BLOCK):
        key = start + lane
        a, visible = _weights(old, base + key, real & (key < S), m_old, total_old)
        b, _ = _weights(new, base + key, real & (key < S), m_new, total_new)
        visible = tl.max(visible.to(tl.int32), axis=0, keep_dims=True)
        seen += tl.sum(visible.to(tl.float32), axis=1, keep_dims=True)
        if BY_KEY:
            d, n, k = (tl.sum(a * b, axis=0, keep_dims=True), tl.sum(a * a, axis=0, keep_dims=True),
                       tl.sum(b * b, axis=0, keep_dims=True))  # fmt: skip
            cosine = d / (tl.maximum(tl.sqrt(n), 1e-8) * tl.maximum(tl.sqrt(k), 1e-8))
            cosines += tl.sum(tl.where(visible != 0, cosine, 0.0), axis=1, keep_dims=True)
        else:
            dot += tl.sum(a * b, axis=1, keep_dims=True)
            norm_a += tl.sum(a * a, axis=1, keep_dims=True)
            norm_b += tl.sum(b * b, axis=1, keep_dims=True)
    if BY_KEY:
        result = cosines / tl.maximum(seen, 1.0)
    else:
        cosine = dot / (tl.maximum(tl.sqrt(norm_a), 1e-8) * tl.maximum(tl.sqrt(norm_b), 1e-8))
        result = tl.sum(cosine, axis=0, keep_dims=True) / H
    tl.store(out + row + tl.zeros([1, 1], tl.int64), tl.where(seen > 0, result, 1.0))


def similarity(old: Tensor, new: Tensor, axis: str, triton: bool = False) -> Tensor:
    """``similarity_reference``, by the kernel when ``triton`` (float32)."""
    if not triton:
        return similarity_reference(old, new, axis)
    rows, heads, tracked, keys = old.shape
    out = torch.empty(rows, tracked, dtype=torch.float32, device=old.device)
    if out.numel() and keys:
        _similarity[(out.numel(),)](
            old.contiguous(), new.contiguous(), out, keys, heads, tracked, HEADS=power_of_two(heads),
            BY_KEY=axis == "heads", **ALIKE.arguments,
        )  # fmt: skip
    return out


def received_reference(scores: Tensor, real: Tensor) -> Tensor:
    """Attention that every key receives [B, S]: the softmax of ``scores`` [B, H, m, S] summed over the heads and the
    ``real`` rows [B, m] (a row of -inf gives nothing)."""
    weights = scores.to(torch.promote_types(scores.dtype, torch.float32)).softmax(-1)
    by_row = torch.nan_to_num(weights.sum(1))  # [B, m, S]
    return (by_row * real[:, :, None]).sum(1)


@jit
def _normalisers(scores, out, S, BLOCK: tl.constexpr):
    """One program per row: logsumexp, +inf for a row that sees nothing."""
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)[None, :]
    base = row * S + tl.zeros([1, 1], tl.int64)
    m, total = _sums(scores, base, lane, S, lane >= 0, 1, BLOCK)
    tl.store(out + row + tl.zeros([1, 1], tl.int64), tl.where(m > -1e30, m + tl.log(total), float("inf")))


@jit
def _received(scores, normalisers, real, out, R, M, S, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """One program per batch row and block of keys, which adds up all R = H M rows: no atomics, always the same sum."""
    batch = tl.program_id(0).to(tl.int64)
    key, line = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :], tl.arange(0, ROWS)[:, None]
    total = tl.zeros([1, BLOCK], tl.float32)
    for start in range(0, R, ROWS):
        row = start + line
        counts = tl.load(real + batch * M + row % M, mask=row < R, other=0) != 0
        z = tl.load(scores + (batch * R + row) * S + key, mask=counts & (key < S), other=-float("inf")).to(tl.float32)
        logsumexp = tl.load(normalisers + batch * R + row, mask=row < R, other=float("inf"))
        total += tl.sum(tl.where(z > -1e30, tl.exp(z - logsumexp), 0.0), axis=0, keep_dims=True)
    tl.store(out + batch * S + key, total, mask=key < S)


def received(scores: Tensor, real: Tensor, triton: bool = False) -> Tensor:
    """``received_reference``, by the kernels when ``triton`` (float32)."""
    if not triton:
        return received_reference(scores, real)
    scores = scores.contiguous()
    batch, heads, tracked, keys = scores.shape
    rows, out = heads * tracked, torch.zeros(batch, keys, dtype=torch.float32, device=scores.device)
    if scores.numel():
        normalisers = torch.empty(batch, rows, dtype=torch.float32, device=scores.device)
        _normalisers[(batch * rows,)](scores, normalisers, keys, **KEYS.arguments)
        _received[(batch, -(-keys // SUMS.blocks["BLOCK"]))](
            scores, normalisers, real.to(torch.int8).contiguous(), out, rows, tracked, keys, **SUMS.arguments
        )  # fmt: skip
    return out


SUMS = Shape({"ROWS": 32, "BLOCK": 64}, warps=4)
SCORES = {"scores": "*fp32", "out": "*fp32", "S": "i32"}
SUMMED = SCORES | {"normalisers": "*fp32", "real": "*i8", "R": "i32", "M": "i32"}
BUILDS = (
    *(Build(f"drift.similarity-{heads}-{by_key}", _similarity,
            {"old": "*fp32", "new": "*fp32", "out": "*fp32", "S": "i32", "H": "i32", "M": "i32"},
            {"HEADS": heads, "BY_KEY": by_key, **ALIKE.blocks}, ALIKE.warps, ALIKE.stages)
      for heads, by_key in ((32, True), (32, False), (16, True))),
    Build("drift.normalisers", _normalisers, SCORES, KEYS.blocks, KEYS.warps, KEYS.stages),
    Build("drift.received", _received, SUMMED, SUMS.blocks, SUMS.warps, SUMS.stages),
)  # fmt: skip
