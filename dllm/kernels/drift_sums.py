"""What Elastic-Cache (arXiv 2510.14973) reads of a layer's attention: how much each key receives from the window, and
how alike the attention of the watched rows is to what it was.

    p = softmax(z)    received[b, s] = sum over heads a and real rows i < w of p[b, a, i, s]
    alike[b] = sum_i mean[b, i] / count[b] sum_s cos_a(old p[b, a, i, s], p[b, a, w + i, s])

z [B, H, w + r, S] and old z [B, H, r, S] come as ``attention_scores``, with the log-sum-exp of their blocks of keys;
cos is the cosine of vectors over the heads, whose norms count as 1e-8 at least; mean [B, r] turns a sum over the
watched rows into their mean. ``alike`` comes by blocks of keys [B, S / 32, rounded up], whose sum is meant. In torch
these are 20 operations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.kernels.jit import Build, LaunchConfig, each_type, jit, tl

KeyScores = tuple[Tensor, Tensor]  # of ``attention_scores``
_CONFIG = LaunchConfig({"ROWS": 16, "KEYS": 32, "PARTS": 16}, warps=8)


def reference(
    new: KeyScores, old: KeyScores | None, real: Tensor, mean: Tensor, count: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Received attention [B, S], and the similarity by blocks of keys (old None: zeros). real [B, w], mean [B, r],
    count [B]: keys of each row (None: S)."""
    keys, width = _CONFIG.blocks["KEYS"], real.shape[1]
    weights = new[0].softmax(-1).nan_to_num()
    received = (weights[:, :, :width] * real[:, None, :, None]).sum((1, 2))
    cosine = torch.zeros_like(new[0][:, 0, :0])
    if old is not None:
        before, after = old[0].softmax(-1).nan_to_num(), weights[:, :, width:]
        norms = (before.square().sum(1).clamp(min=1e-16) * after.square().sum(1).clamp(min=1e-16)).sqrt()
        cosine = (before * after).sum(1) / norms
    alike = (cosine * mean[:, : cosine.shape[1], None]).sum(1) / (new[0].shape[3] if count is None else count[:, None])
    return received, torch.stack([part.sum(1) for part in alike.split(keys, 1)], 1)


@jit()
def total_of(sums, row, real, BLOCKS, KIND: tl.constexpr, PARTS: tl.constexpr):
    """The log-sum-exp [ROWS, 1] of all keys, from that of each block, PARTS of them at a time."""
    most = tl.full(row.shape, -1e30, KIND)
    total = tl.zeros(row.shape, KIND)
    for first in range(0, BLOCKS, PARTS):
        part = first + tl.arange(0, PARTS)[None, :]
        e = tl.load(sums + row * BLOCKS + part, mask=real & (part < BLOCKS), other=-1e30)
        now = tl.maximum(most, tl.max(e, axis=1, keep_dims=True))
        total = total * tl.exp(most - now) + tl.sum(tl.exp(e - now), axis=1, keep_dims=True)
        most = now
    return most + tl.log(total)


@jit()
def softmax_of(scores, sums, row, real, key, seen, S, BLOCKS, KIND: tl.constexpr, PARTS: tl.constexpr):
    """The weights [ROWS, KEYS] of rows; 0 for those that are not ``real``, and at keys that are not ``seen``."""
    total = total_of(sums, row, real, BLOCKS, KIND, PARTS)
    z = tl.load(scores + row * S + key, mask=real & seen, other=-float("inf"))
    return tl.where(real & seen, tl.exp(z - total), 0.0)


@jit("W", "R", "S", "BLOCKS", "H")
def _drift_sums(new, new_sums, old, old_sums, real, mean, count, received, alike, W, R, S, BLOCKS, H,
                WIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    """One program per KEYS keys of a row, ROWS rows of attention at a time, head after head."""
    KIND: tl.constexpr = tl.float64 if WIDE else tl.float32
    b, key = tl.program_id(1).to(tl.int64), tl.program_id(0) * KEYS + tl.arange(0, KEYS)[None, :]
    keys, heads, m = S, b * H, W + R
    if count is not None:
        keys = tl.load(count + b)
    seen, total = (key < S) & (key < keys), tl.zeros([1, KEYS], KIND)
    for first in range(0, W, ROWS):
        number = first + tl.arange(0, ROWS)[:, None]
        counts = tl.load(real + b * W + number, mask=number < W, other=0) != 0
        for head in range(H):
            p = softmax_of(new, new_sums, (heads + head) * m + number, counts, key, seen, S, BLOCKS, KIND, PARTS)
            total += tl.sum(p, axis=0, keep_dims=True)
    tl.store(received + b * S + key, total, mask=key < S)
    similar = tl.zeros([ROWS, KEYS], KIND)
    for first in range(0, R, ROWS):
        number = first + tl.arange(0, ROWS)[:, None]
        watched = number < R
        product, before, after = similar * 0.0, similar * 0.0, similar * 0.0
        for head in range(H):
            p = softmax_of(old, old_sums, (heads + head) * R + number, watched, key, seen, S, BLOCKS, KIND, PARTS)
            q = softmax_of(new, new_sums, (heads + head) * m + W + number, watched, key, seen, S, BLOCKS, KIND, PARTS)
            product, before, after = product + p * q, before + p * p, after + q * q
        share = tl.load(mean + b * R + number, mask=watched, other=0.0)
        norms = tl.sqrt(tl.maximum(before, 1e-16) * tl.maximum(after, 1e-16))
        similar += product / norms * share
    similarity = tl.sum(tl.sum(similar, axis=1), axis=0) / keys
    tl.store(alike + b * tl.num_programs(0) + tl.program_id(0), similarity)


def drift_sums(
    new: KeyScores, old: KeyScores | None, real: Tensor, mean: Tensor, count: Tensor | None, triton: bool = False
) -> tuple[Tensor, Tensor]:
    """``reference``. triton: the kernel, equal up to the order of the sums."""
    if not triton:
        return reference(new, old, real, mean, count)
    (rows, heads, m, length), width = new[0].shape, real.shape[1]
    blocks, watched = -(-length // _CONFIG.blocks["KEYS"]), 0 if old is None else m - width
    received, alike = new[0].new_empty(rows, length), new[0].new_empty(rows, blocks)
    _drift_sums[(blocks, rows)](
        *new, *(old or new), real.contiguous(), mean.contiguous(), count, received, alike, width, watched, length,
        new[1].shape[3], heads, WIDE=new[0].dtype == torch.float64, **_CONFIG.arguments,
    )  # fmt: skip
    return received, alike


BUILDS = (
    Build(
        "drift_sums-fp32",
        _drift_sums,
        _CONFIG,
        {"real": "*i1", "count": "*i32"}
        | each_type({"new new_sums old old_sums mean received alike": "*fp32", "W R S BLOCKS H": "i32"}),
        {"WIDE": False},
    ),
)
