"""Rotary positions, and keys and values into their cache rows, in one launch: the store is the scatter.

Apart, a layer rotates queries and keys (six launches), and writes two buffers through an index (two more). Here each
program takes a few heads; a token whose column is outside the buffer is padding and is not stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dllm.kernels.jit import Build, Shape, jit, power_of_two

if TYPE_CHECKING:
    import triton.language as tl

ROWS = 8  # heads in one program


def rotated(x: Tensor, cos: Tensor, sin: Tensor, wide: bool) -> Tensor:
    """Rotate the first d features of x [B, n, H, h] by cos, sin [B, n, 1, d] (rotate-half): feature i of the first half
    becomes x_i cos - x_{i + d/2} sin, its partner x_{i + d/2} cos + x_i sin. ``sin`` comes with that sign.

    wide: in float32 or better, rounded once (LLaDA); else in the dtype of x, every product rounded (the others).
    """
    kind, turns = torch.promote_types(x.dtype, torch.float32) if wide else x.dtype, cos.shape[-1]
    cos, sin, y = cos.to(kind), sin.to(kind), x.to(kind)
    part = y if turns == y.shape[-1] else y[..., :turns]
    out = part * cos + part.roll(turns // 2, -1) * sin
    return (out if part is y else torch.cat([out, y[..., turns:]], -1)).to(x.dtype)


def reference(
    query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, columns: Tensor | None,
    keys: Tensor, values: Tensor, wide: bool,
) -> Tensor:  # fmt: skip
    """The rotated queries [B, n, H, h]; rotated keys and values [B, n, H_kv, h] go into row ``columns`` [B, n] of the
    buffers [B, H_kv, S, h] (None: rows 0 to n - 1), in place; columns outside are padding."""
    rotated_key, size = rotated(key, cos, sin, wide), keys.shape[2]
    if columns is None:
        keys[:, :, : key.shape[1]], values[:, :, : key.shape[1]] = rotated_key.transpose(1, 2), value.transpose(1, 2)
    else:
        row, at = torch.where((columns >= 0) & (columns < size))
        keys[row, :, columns[row, at]], values[row, :, columns[row, at]] = rotated_key[row, at], value[row, at]
    return rotated(query, cos, sin, wide)


@jit()
def turned(x, place, inside, cos, sin, HALF: tl.constexpr, ROUND: tl.constexpr):
    """Both rotated halves of the rows of x at ``place``, in its dtype; ROUND: every product is rounded to it."""
    kind = x.dtype.element_ty
    first = tl.load(x + place, mask=inside, other=0.0).to(cos.dtype)
    second = tl.load(x + place + HALF, mask=inside, other=0.0).to(cos.dtype)
    a, b, c, d = first * cos, second * sin, second * cos, first * sin
    if ROUND:
        a, b, c, d = (a.to(kind).to(cos.dtype), b.to(kind).to(cos.dtype), c.to(kind).to(cos.dtype),
                      d.to(kind).to(cos.dtype))  # fmt: skip
    return (a - b).to(kind), (c + d).to(kind)


@jit("T", "n", "S", "H", "H_KV")
def _rope_scatter(query, key, value, cosine, sine, columns, out, keys, values, T, n, S, H, H_KV,
                  SIZE: tl.constexpr, HALF: tl.constexpr, ROUND: tl.constexpr, ROWS: tl.constexpr,
                  LANES: tl.constexpr, WHOLE: tl.constexpr):  # fmt: skip
    """One program per ROWS heads of the T = B n tokens: first those of queries, then those of keys with their values.

    SIZE: features of a head; HALF: half of those that rotate; LANES, WHOLE: HALF and SIZE as powers of two.
    """
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
        cos, sin = cos.to(query.dtype.element_ty).to(cos.dtype), sin.to(query.dtype.element_ty).to(sin.dtype)
    place = row * SIZE
    still = (feature >= 2 * HALF) & (feature < SIZE)
    if stores:
        column = token % n
        if columns is not None:
            column = tl.load(columns + token, mask=real, other=S)
        real = real & (column >= 0) & (column < S)
        inside, target = real & (lane < HALF), ((token // n * H_KV + head) * S + column) * SIZE
        low, high = turned(key, place + lane, inside, cos, sin, HALF, ROUND)
        tl.store(keys + target + lane, low, mask=inside)
        tl.store(keys + target + HALF + lane, high, mask=inside)
        if 2 * HALF < SIZE:
            tl.store(keys + target + feature, tl.load(key + place + feature, mask=real & still), mask=real & still)
        whole = real & (feature < SIZE)
        tl.store(values + target + feature, tl.load(value + place + feature, mask=whole), mask=whole)
    else:
        low, high = turned(query, place + lane, inside, cos, sin, HALF, ROUND)
        tl.store(out + place + lane, low, mask=inside)
        tl.store(out + place + HALF + lane, high, mask=inside)
        if 2 * HALF < SIZE:
            tl.store(out + place + feature, tl.load(query + place + feature, mask=real & still), mask=real & still)


def rope_scatter(
    query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, columns: Tensor | None,
    keys: Tensor, values: Tensor, wide: bool, triton: bool = False,
) -> Tensor:  # fmt: skip
    """``reference``, by the kernel when ``triton``. cos, sin [B, n, 1, d] in float32 (float64 for float64 rows)."""
    if not triton:
        return reference(query, key, value, cos, sin, columns, keys, values, wide)
    assert keys.is_contiguous() and values.is_contiguous(), "cache buffers are written in place"
    (rows, n, heads, size), kv_heads, turns = query.shape, key.shape[2], cos.shape[-1]
    query, out = query.contiguous(), torch.empty_like(query, memory_format=torch.contiguous_format)
    if rows and n:
        shape = shape_of(size, turns // 2)
        tokens, group = rows * n, shape.blocks["ROWS"]
        _rope_scatter[(-(-tokens * heads // group) + -(-tokens * kv_heads // group),)](
            query, key.contiguous(), value.contiguous(), cos.expand(rows, n, 1, turns).contiguous(),
            sin.expand(rows, n, 1, turns).contiguous(), None if columns is None else columns.contiguous(), out, keys,
            values, tokens, n, keys.shape[2], heads, kv_heads,
            SIZE=size, HALF=turns // 2, ROUND=not wide, **shape.arguments,
        )  # fmt: skip
    return out


def shape_of(size: int, half: int) -> Shape:
    return Shape({"ROWS": ROWS, "LANES": power_of_two(half), "WHOLE": power_of_two(size)}, warps=4 if size > 64 else 1)


def _build(kind: str, size: int, half: int, listed: bool, rounded: bool) -> Build:
    shape = shape_of(size, half)
    types = dict.fromkeys(("query", "key", "value", "out", "keys", "values"), f"*{kind}")
    types |= {"cosine": "*fp32", "sine": "*fp32", "T": "i32", "n": "i32", "S": "i32", "H": "i32", "H_KV": "i32"}
    constants: dict[str, Any] = {"SIZE": size, "HALF": half, "ROUND": rounded, **shape.blocks}
    if listed:
        types["columns"] = "*i64"
    else:
        constants["columns"] = None
    name = f"rope_scatter-{kind}-{size}-{half}-{listed}-{rounded}"
    return Build(name, _rope_scatter, types, constants, shape.warps, shape.stages)


BUILDS = (
    _build("bf16", 128, 64, True, False), _build("bf16", 128, 64, True, True), _build("bf16", 128, 64, False, False),
    _build("bf16", 128, 32, True, True), _build("bf16", 64, 32, True, False), _build("fp16", 128, 64, True, False),
    _build("fp32", 128, 64, True, False),
)  # fmt: skip
