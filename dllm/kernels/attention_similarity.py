"""Similarity of two sets of attention rows, for Elastic-Cache's drift test (arXiv 2510.14973), in one read of both.

With old and new softmax weights a, b [B, H, m, S], which are 0 at hidden keys, and c = cosine:

    axis=heads: mean over visible keys s of c(a[:, s], b[:, s]), vectors over the heads (the published code)
    axis=keys:  mean over heads h of c(a[h, :], b[h, :]), vectors over the keys (the paper's formula)

Each [B, m], 1 for equal rows. Norms below 1e-8 count as 1e-8. Fused attention returns no weights, so
``dllm.cache.drift`` computes them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.kernels.jit import Build, LaunchConfig, jit, power_of_two, tl

_CONFIG = LaunchConfig({"BLOCK": 32}, warps=4)  # of two sets of 32 heads; with more keys at once registers spill


def reference(old: Tensor, new: Tensor, keys: Tensor, axis: str) -> Tensor:
    """Similarity [B, m] of attention rows ``old`` and ``new`` [B, H, m, S]. keys [B]: how many keys are visible."""
    if axis == "keys":
        return cosine(old, new, 3).mean(1)
    return cosine(old, new, 1).sum(-1) / keys[:, None]  # both weights are 0 at hidden keys


def cosine(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """``F.cosine_similarity`` along ``dim``. Its own vector norms take 20 times as long over an outer axis of a CPU."""
    squares = [(x * x).sum(dim).clamp_(min=1e-16) for x in (a, b)]
    return (a * b).sum(dim) / (squares[0] * squares[1]).sqrt_()


@jit("S", "H", "M")
def _attention_similarity(old, new, seen, out, S, H, M, HEADS: tl.constexpr, BLOCK: tl.constexpr, BY_KEY: tl.constexpr):
    """One program per attention row, M of them in each batch row. BY_KEY: a cosine over the heads for each key."""
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


def attention_similarity(old: Tensor, new: Tensor, keys: Tensor, axis: str, triton: bool = False) -> Tensor:
    """``reference``. triton: the kernel, in float32, equal up to the order of the sums."""
    if not triton:
        return reference(old, new, keys, axis)
    batch, heads, rows, length = old.shape
    out = torch.empty(batch, rows, dtype=torch.float32, device=old.device)
    if out.numel():
        _attention_similarity[(out.numel(),)](
            old.contiguous(), new.contiguous(), keys.contiguous(), out, length, heads, rows,
            HEADS=power_of_two(heads), BY_KEY=axis == "heads", **_CONFIG.arguments,
        )  # fmt: skip
    return out


BUILDS = tuple(
    Build(
        f"attention_similarity-{heads}-{by_key}", _attention_similarity, _CONFIG,
        {"old": "*fp32", "new": "*fp32", "seen": "*i64", "out": "*fp32", "S": "i32", "H": "i32", "M": "i32"},
        {"HEADS": heads, "BY_KEY": by_key},
    )
    for heads, by_key in ((32, True), (32, False), (16, True))
)  # fmt: skip
