"""Rotary embedding (RoPE, arXiv 2104.09864; the rotate-half form) and the store into the cache, in one launch.

For a head x of h features, d of them rotating, at angles a_i of its position, i < d / 2:

    y_i = x_i cos a_i - x_{i + d/2} sin a_i    y_{i + d/2} = x_{i + d/2} cos a_i + x_i sin a_i    else y_j = x_j

Some models norm every head of queries and keys first: x = round(x / sqrt(mean(x^2) + eps)) * gain (``add_norm``).

Queries [B, n, H, h] come back rotated. Rotated keys and plain values [B, n, H_kv, h] go to ``columns`` [B, n] of the
buffers [B, H_kv, S, h]; a column outside [0, S) is padding and is not stored. Rotated queries may be kept as well, at
``columns`` of a buffer [B, Q, H, h]. As separate operations these take six launches for the rotations, two or three for
the indexed stores, and two for the norms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from dllm.kernels import add_norm
from dllm.kernels.jit import Build, LaunchConfig, each_type, jit, power_of_two, tl

HEADS_PER_PROGRAM = 8


@dataclass(frozen=True)
class HeadNorms:
    """Norms of the heads before they rotate: the gains [h] of queries and of keys."""

    query: Tensor  # [h] gains of queries
    key: Tensor  # [h] gains of keys
    eps: float  # added to the mean square


def rotated(x: Tensor, cos: Tensor, sin: Tensor, wide: bool) -> Tensor:
    """Heads x [B, n, H, h] with their first d features rotated by cos, sin [B, n, 1, d].

    The first half of ``sin`` is negated: it holds -sin a_i, then sin a_i. wide: compute in float32 or wider and round
    once (LLaDA). Otherwise compute in the dtype of x and round every product (the other families).
    """
    kind, rotating = torch.promote_types(x.dtype, torch.float32) if wide else x.dtype, cos.shape[-1]
    cos, sin, y = cos.to(kind), sin.to(kind), x.to(kind)
    part = y if rotating == y.shape[-1] else y[..., :rotating]
    out = part * cos + part.roll(rotating // 2, -1) * sin
    return (out if part is y else torch.cat([out, y[..., rotating:]], -1)).to(x.dtype)


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    columns: Tensor | None,
    keys: Tensor,
    values: Tensor,
    wide: bool,
    norms: HeadNorms | None = None,
    queries: Tensor | None = None,
) -> Tensor:
    """Rotated queries [B, n, H, h]. Writes the rotated ``key`` and ``value`` into the buffers ``keys`` and ``values``,
    and the rotated ``query`` into ``queries`` (None: it is not kept).

    columns None: 0 to n - 1. cos, sin and ``wide`` as in ``rotated``. norms None: heads rotate as they are.
    """
    if norms is not None:
        query, key = (
            add_norm.reference(x, None, gain, norms.eps)[1] for x, gain in ((query, norms.query), (key, norms.key))
        )
    stores = [(keys, rotated(key, cos, sin, wide)), (values, value)]
    out = rotated(query, cos, sin, wide)
    if queries is not None:
        stores.append((queries.transpose(1, 2), out))
    for store, fresh in stores:
        if columns is None:
            store[:, :, : fresh.shape[1]] = rearrange(fresh, "b n h d -> b h n d")
        else:
            row, token = torch.where((columns >= 0) & (columns < store.shape[2]))
            store[row, :, columns[row, token]] = fresh[row, token]
    return out


@jit()
def load_head(x, gain, place, real, lane, feature, cos, SIZE: tl.constexpr, HALF: tl.constexpr, EPS: tl.constexpr):
    """The two halves that rotate of heads of x at ``place``, and the rest (if any), normed, in the dtype of ``cos``."""
    kind: tl.constexpr = x.dtype.element_ty
    wide: tl.constexpr = cos.dtype
    turns, stays = lane < HALF, (feature >= 2 * HALF) & (feature < SIZE)
    first = tl.load(x + place + lane, mask=real & turns, other=0.0).to(wide)
    second = tl.load(x + place + HALF + lane, mask=real & turns, other=0.0).to(wide)
    rest = first
    if 2 * HALF < SIZE:
        rest = tl.load(x + place + feature, mask=real & stays, other=0.0).to(wide)
    if gain is not None:
        square = tl.sum(first * first, axis=1, keep_dims=True) + tl.sum(second * second, axis=1, keep_dims=True)
        if 2 * HALF < SIZE:
            square += tl.sum(rest * rest, axis=1, keep_dims=True)
        root = tl.sqrt(square / SIZE + EPS)
        low, high = (first / root).to(kind).to(wide), (second / root).to(kind).to(wide)
        first = (low * tl.load(gain + lane, mask=turns, other=0.0).to(wide)).to(kind).to(wide)
        second = (high * tl.load(gain + HALF + lane, mask=turns, other=0.0).to(wide)).to(kind).to(wide)
        if 2 * HALF < SIZE:
            rest = (rest / root).to(kind).to(wide) * tl.load(gain + feature, mask=stays, other=0.0).to(wide)
    return first, second, rest.to(kind)


@jit()
def rotate_halves(first, second, cos, sin, kind: tl.constexpr, ROUND: tl.constexpr):
    """Both rotated halves, in ``kind``. ROUND: round every product to it."""
    wide: tl.constexpr = cos.dtype
    a, b, c, d = first * cos, second * sin, second * cos, first * sin
    if ROUND:
        a, b, c, d = a.to(kind).to(wide), b.to(kind).to(wide), c.to(kind).to(wide), d.to(kind).to(wide)
    return (a - b).to(kind), (c + d).to(kind)


@jit("T", "n", "S", "Q", "H", "H_KV")
def _rope_scatter(query, key, value, cosine, sine, columns, query_gain, key_gain, out, keys, values, queries,
                  T, n, S, Q, H, H_KV, q_step, k_step, v_step,
                  SIZE: tl.constexpr, HALF: tl.constexpr, ROUND: tl.constexpr, EPS: tl.constexpr, ROWS: tl.constexpr,
                  LANES: tl.constexpr, WHOLE: tl.constexpr):  # fmt: skip
    """One program per ROWS heads of the T = B n tokens. The first programs take queries, the others keys and values.

    q_step, k_step, v_step: numbers from token to token. SIZE: features of a head. HALF: half of those that rotate.
    LANES, WHOLE: HALF and SIZE as powers of two. query_gain, key_gain: of the norms of heads; None: none. queries: a
    buffer of Q columns; None: none.
    """
    KIND: tl.constexpr = query.dtype.element_ty
    lane, feature = tl.arange(0, LANES)[None, :], tl.arange(0, WHOLE)[None, :]
    groups, heads, group = tl.cdiv(T * H, ROWS), H, tl.program_id(0)
    stores = group >= groups
    if stores:
        group, heads = group - groups, H_KV
    row = group.to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    token, head, real = row // heads, row % heads, row < T * heads
    angle, inside = token * 2 * HALF + lane, real & (lane < HALF)
    cos, sin = tl.load(cosine + angle, mask=inside, other=1.0), tl.load(sine + HALF + angle, mask=inside, other=0.0)
    if ROUND:
        cos, sin = cos.to(KIND).to(cos.dtype), sin.to(KIND).to(sin.dtype)
    inner = head * SIZE
    still = (feature >= 2 * HALF) & (feature < SIZE)
    if stores:
        place, column = token * k_step + inner, token % n
        if columns is not None:
            column = tl.load(columns + token, mask=real, other=S)
        real = real & (column >= 0) & (column < S)
        inside, target = real & (lane < HALF), ((token // n * H_KV + head) * S + column) * SIZE
        first, second, rest = load_head(key, key_gain, place, real, lane, feature, cos, SIZE, HALF, EPS)
        low, high = rotate_halves(first, second, cos, sin, KIND, ROUND)
        tl.store(keys + target + lane, low, mask=inside)
        tl.store(keys + target + HALF + lane, high, mask=inside)
        if 2 * HALF < SIZE:
            tl.store(keys + target + feature, rest, mask=real & still)
        whole = real & (feature < SIZE)
        source = value + token * v_step + inner + feature
        tl.store(values + target + feature, tl.load(source, mask=whole), mask=whole)
    else:
        place, target = token * q_step + inner, row * SIZE
        first, second, rest = load_head(query, query_gain, place, real, lane, feature, cos, SIZE, HALF, EPS)
        low, high = rotate_halves(first, second, cos, sin, KIND, ROUND)
        tl.store(out + target + lane, low, mask=inside)
        tl.store(out + target + HALF + lane, high, mask=inside)
        if 2 * HALF < SIZE:
            tl.store(out + target + feature, rest, mask=real & still)
        if queries is not None:
            column = token % n
            if columns is not None:
                column = tl.load(columns + token, mask=real, other=Q)
            kept = real & (column >= 0) & (column < Q)
            target = ((token // n * Q + column) * H + head) * SIZE
            tl.store(queries + target + lane, low, mask=kept & (lane < HALF))
            tl.store(queries + target + HALF + lane, high, mask=kept & (lane < HALF))
            if 2 * HALF < SIZE:
                tl.store(queries + target + feature, rest, mask=kept & still)


def rope_scatter(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    columns: Tensor | None,
    keys: Tensor,
    values: Tensor,
    wide: bool,
    norms: HeadNorms | None = None,
    queries: Tensor | None = None,
    triton: bool = False,
) -> Tensor:
    """``reference``. triton: the kernel, equal up to one rounding; cos, sin in float32 (float64 for float64 rows)."""
    if not triton:
        return reference(query, key, value, cos, sin, columns, keys, values, wide, norms, queries)
    buffers = [keys, values, *(() if queries is None else (queries,))]
    assert all(buffer.is_contiguous() for buffer in buffers), "cache buffers are written in place"
    (rows, n, heads, size), kv_heads, rotating = query.shape, key.shape[2], cos.shape[-1]
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    if rows and n:
        config = _config(size, rotating // 2)
        tokens, group = rows * n, config.blocks["ROWS"]
        (query, q_step), (key, k_step), (value, v_step) = (by_token(x) for x in (query, key, value))
        gains, eps = (None, None) if norms is None else (norms.query, norms.key), 0.0 if norms is None else norms.eps
        _rope_scatter[(-(-tokens * heads // group) + -(-tokens * kv_heads // group),)](
            query, key, value, cos.expand(rows, n, 1, rotating).contiguous(),
            sin.expand(rows, n, 1, rotating).contiguous(), None if columns is None else columns.contiguous(), *gains,
            out, keys, values, queries, tokens, n, keys.shape[2], 0 if queries is None else queries.shape[1], heads,
            kv_heads, q_step, k_step, v_step,
            SIZE=size, HALF=rotating // 2, ROUND=not wide, EPS=eps, **config.arguments,
        )  # fmt: skip
    return out


def by_token(x: Tensor) -> tuple[Tensor, int]:
    """Heads [B, n, H, h], and the step from token to token. They may be a part of wider rows; others are copied."""
    (rows, n, heads, size), (row, token, head, feature) = x.shape, x.stride()
    even = rows == 1 or n == 1 or row == n * token
    if not (even and feature == 1 and (heads == 1 or head == size)):
        x, row, token = x.contiguous(), n * heads * size, heads * size
    return x, token if n > 1 else row if rows > 1 else heads * size


def _config(size: int, half: int) -> LaunchConfig:
    blocks = {"ROWS": HEADS_PER_PROGRAM, "LANES": power_of_two(half), "WHOLE": power_of_two(size)}
    return LaunchConfig(blocks, warps=4 if size > 64 else 1)


def _build(
    kind: str, size: int, half: int, listed: bool, rounded: bool, normed: bool = False, kept: bool = False
) -> Build:
    types = each_type({"query key value out keys values": f"*{kind}", "cosine sine": "*fp32", "T n S Q H H_KV": "i32"})
    types |= each_type({"q_step k_step v_step": "i32/16", "query_gain key_gain": f"*{kind}" if normed else None})
    return Build(
        f"rope_scatter-{kind}-{size}-{half}-{listed}-{rounded}{'-normed' * normed}{'-kept' * kept}",
        _rope_scatter,
        _config(size, half),
        types | {"columns": "*i64" if listed else None, "queries": f"*{kind}" if kept else None},
        {"SIZE": size, "HALF": half, "ROUND": rounded, "EPS": 1e-6},
    )


BUILDS = (
    _build("bf16", 128, 64, True, False),
    _build("bf16", 128, 64, True, True),
    _build("bf16", 128, 64, False, False),
    _build("bf16", 128, 32, True, True),
    _build("bf16", 64, 32, True, False),
    _build("fp16", 128, 64, True, False),
    _build("fp32", 128, 64, True, False),
    _build("bf16", 128, 64, True, True, True),
    _build("bf16", 128, 32, True, True, True),
    _build("bf16", 128, 64, True, False, kept=True),
    _build("bf16", 128, 64, True, True, kept=True),
)
