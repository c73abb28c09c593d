"""Scores of a few queries over all keys, and what their softmax follows from.

    z[b, a, i, s] = q[b, i, a] . k[b, s, a'] / sqrt(h)    e[b, a, i, j] = log of the sum of exp z over block j of keys

q [B, n, H, h], k [B, H_kv, S, h], z [B, H, m, S] and e [B, H, m, S / 128, rounded up] in float32 or wider. H / H_kv
heads a share the keys of a head a'. Keys from ``count`` [B] on are hidden: their z is -inf. Attention weights are
exp(z - log(sum_j exp e)): nothing is read twice to make them, since every block of keys is a program of its own.

Serves Elastic-Cache, which watches how the weights of some rows change (``drift_sums``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.kernels.jit import Build, LaunchConfig, each_type, interpreted, jit, power_of_two, tl

KEY_BLOCK = 128  # keys of a block


def reference(query: Tensor, columns: Tensor | None, keys: Tensor, count: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores [B, H, m, S] of the queries at ``columns`` [B, m] of ``query`` [B, n, H, h] (None: all n of them) over
    ``keys`` [B, H_kv, S, h], and the log-sum-exp of their blocks. count [B]: the keys that a row sees (None: all)."""
    kind = torch.promote_types(query.dtype, torch.float32)
    rows = query if columns is None else query[torch.arange(len(query), device=query.device)[:, None], columns]
    wide = keys.to(kind).repeat_interleave(query.shape[2] // keys.shape[1], 1)
    scores = torch.einsum("bnad,basd->bans", rows.to(kind), wide) * query.shape[3] ** -0.5
    if count is not None:
        hidden = torch.arange(keys.shape[2], device=keys.device) >= count[:, None]
        scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
    blocks = [part.logsumexp(-1) for part in scores.split(KEY_BLOCK, -1)]
    return scores, torch.stack(blocks, -1)


@jit("M", "S", "BLOCKS", "q_step", "k_step", "head_step", "H")
def _scores(query, columns, keys, count, scores, sums, M, S, BLOCKS, q_step, k_step, head_step, H,
            GROUP: tl.constexpr, SIZE: tl.constexpr, SCALE: tl.constexpr, UPCAST: tl.constexpr, WIDE: tl.constexpr,
            ROWS: tl.constexpr, LANES: tl.constexpr, KEYS: tl.constexpr):  # fmt: skip
    """One program per block of KEYS keys, ROWS queries, and head of a row. GROUP heads share keys. LANES: SIZE, the
    features of a head, as a power of two. q_step, k_step, head_step: numbers from row to row, and from head to head of
    the keys. UPCAST: widen before the product, because the interpreter multiplies the bits of bfloat16 numbers."""
    KIND: tl.constexpr = tl.float64 if WIDE else tl.float32
    pair = tl.program_id(2).to(tl.int64)
    row, head = pair // H, pair % H
    number, key = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    feature, real = tl.arange(0, LANES), number < M
    place = number.to(tl.int64)
    if columns is not None:
        place = tl.load(columns + row * M + number, mask=real, other=0)
    q = tl.load(
        query + row * q_step + (place[:, None] * H + head) * SIZE + feature[None, :],
        mask=real[:, None] & (feature[None, :] < SIZE),
        other=0.0,
    )
    seen = key < S
    if count is not None:
        seen = seen & (key < tl.load(count + row))
    k = tl.load(
        keys + row * k_step + head // GROUP * head_step + key[None, :].to(tl.int64) * SIZE + feature[:, None],
        mask=seen[None, :] & (feature[:, None] < SIZE),
        other=0.0,
    )
    if UPCAST:
        q, k = q.to(KIND), k.to(KIND)
    z = tl.dot(q, k, input_precision="ieee", out_dtype=KIND) * SCALE
    z = tl.where(seen[None, :], z, -float("inf"))
    place = (pair * M + number)[:, None]
    tl.store(scores + place * S + key[None, :], z, mask=real[:, None] & (key[None, :] < S))
    most = tl.max(z, axis=1, keep_dims=True)
    most = tl.where(most == -float("inf"), 0.0, most)  # nothing of the block is seen: -inf - -inf is no number
    total = most + tl.log(tl.sum(tl.exp(z - most), axis=1, keep_dims=True))
    tl.store(sums + place * BLOCKS + tl.program_id(0), total, mask=real[:, None])


def _config(size: int) -> LaunchConfig:
    return LaunchConfig({"ROWS": 16, "LANES": max(16, power_of_two(size)), "KEYS": KEY_BLOCK}, warps=4)


def attention_scores(
    query: Tensor, columns: Tensor | None, keys: Tensor, count: Tensor | None, triton: bool = False
) -> tuple[Tensor, Tensor]:
    """``reference``. triton: the kernel, equal up to the order of the sums."""
    if not triton:
        return reference(query, columns, keys, count)
    (rows, n, heads, size), (_, kv_heads, length, _) = query.shape, keys.shape
    assert query[0].is_contiguous() and keys[0, 0].is_contiguous(), "queries and keys are read where they lie"
    kind, config = torch.promote_types(query.dtype, torch.float32), _config(size)
    m, blocks = n if columns is None else columns.shape[1], -(-length // KEY_BLOCK)
    scores = torch.empty(rows, heads, m, length, dtype=kind, device=query.device)
    sums = torch.empty(rows, heads, m, blocks, dtype=kind, device=query.device)
    if scores.numel():
        _scores[(blocks, -(-m // config.blocks["ROWS"]), rows * heads)](
            query, None if columns is None else columns.contiguous(), keys, count, scores, sums, m, length, blocks,
            query.stride(0), keys.stride(0), keys.stride(1), heads, GROUP=heads // kv_heads, SIZE=size,
            SCALE=size**-0.5, UPCAST=interpreted() and query.dtype == torch.bfloat16, WIDE=kind == torch.float64,
            **config.arguments,
        )  # fmt: skip
    return scores, sums


def _build(kind: str, size: int, group: int, listed: bool) -> Build:
    types = each_type({"query keys": f"*{kind}", "scores sums": "*fp32", "columns": "*i64" if listed else None})
    types |= each_type({"count": "*i32", "M S BLOCKS q_step k_step head_step H": "i32"})
    return Build(
        f"attention_scores-{kind}-{size}-{group}-{listed}",
        _scores,
        _config(size),
        types,
        {"GROUP": group, "SIZE": size, "SCALE": size**-0.5, "UPCAST": False, "WIDE": False},
    )


BUILDS = (
    _build("bf16", 128, 1, False),
    _build("bf16", 128, 1, True),
    _build("bf16", 128, 7, True),
    _build("bf16", 64, 1, False),
    _build("fp16", 128, 1, True),
)
