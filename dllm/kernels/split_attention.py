"""Attention of few queries over many keys, whose keys are split over several programs. In papers: flash-decoding.

Queries [B n, H, h], keys and values [T, H_kv, h], in which row b has its ``count[b]`` keys from ``first[b]`` on. Split
s of a query's logits z gives the maximum m_s, l_s = sum exp(z - m_s) and o_s = sum exp(z - m_s) v, which are joined to
o = sum w_s o_s / sum w_s l_s with w_s = exp(m_s - max m).

One row of LLaDA-8B has 32 heads, so that without splits 32 programs of 132 processors read its keys (H200: 15.6 us a
layer for 16.8 MB, which a copy moves in 4). Nothing of the package calls this yet: ``experiments.gpu_hour`` measures
whole turns with and without it (switch "split attention").
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.kernels.jit import Build, LaunchConfig, interpreted, jit, tl

PROGRAMS, MOST_SPLITS = 256, 16  # programs that keep a GPU's processors busy, whichever GPU it is; splits of a row
BUILT_HEAD = 128  # of the heads that are built
_SPLIT = LaunchConfig({"BLOCK_Q": 32, "BLOCK_K": 64}, warps=4, stages=2)
_JOIN = LaunchConfig(warps=2)


def reference(query: Tensor, key: Tensor, value: Tensor, first: Tensor, count: Tensor, longest: int) -> Tensor:
    """Softmax attention [B n, H, h] of each row's queries over its keys. first, count [B]; longest: no count is above
    it. A row without keys gets 0."""
    wide, groups = torch.promote_types(query.dtype, torch.float32), query.shape[1] // key.shape[1]
    out, n = list[Tensor](), len(query) // len(count)
    for row, (begin, size) in enumerate(zip(first.tolist(), count.tolist(), strict=True)):
        mine = query[row * n : (row + 1) * n].to(wide)
        keys, values = (one[begin : begin + size].to(wide).repeat_interleave(groups, 1) for one in (key, value))
        weights = (torch.einsum("qhd,khd->hqk", mine, keys) * query.shape[2] ** -0.5).softmax(-1)
        out.append(torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype))
    return torch.cat(out)


@jit("n", "heads", "groups", "splits")
def _split(query, key, value, first, count, parts, sums, n, heads, groups, q_step, k_step, v_step, k_head, v_head,
           splits, scale, UPCAST: tl.constexpr, HEAD: tl.constexpr,
           BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """One program per head of a row, tile of its queries, and split of its keys."""
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    number = tl.program_id(1) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    lane, key_lane = tl.arange(0, HEAD), tl.arange(0, BLOCK_K)
    size, begin = tl.load(count + row), tl.load(first + row).to(tl.int64)
    width = tl.cdiv(tl.cdiv(size, BLOCK_K), splits) * BLOCK_K
    start = tl.program_id(2) * width
    end = tl.minimum(start + width, size)
    place = (row * n + number).to(tl.int64)
    asked = number[:, None] < n
    q = tl.load(query + place[:, None] * q_step + head * HEAD + lane[None, :], mask=asked, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    keys = key + head // groups * k_head + begin * k_step
    values = value + head // groups * v_head + begin * v_step
    top = tl.full([BLOCK_Q], -1e30, tl.float32)
    mass, total = tl.zeros([BLOCK_Q], tl.float32), tl.zeros([BLOCK_Q, HEAD], tl.float32)
    for at in range(start, end, BLOCK_K):
        column = at + key_lane
        known = column < end
        k = tl.load(keys + column[None, :].to(tl.int64) * k_step + lane[:, None], mask=known[None, :], other=0.0)
        v = tl.load(values + column[:, None].to(tl.int64) * v_step + lane[None, :], mask=known[:, None], other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        z = tl.where(known[None, :], tl.dot(q, k, input_precision="ieee") * scale, -1e30)
        higher = tl.maximum(top, tl.max(z, 1))
        weight, shrink = tl.where(known[None, :], tl.exp(z - higher[:, None]), 0.0), tl.exp(top - higher)
        mass, top = mass * shrink + tl.sum(weight, 1), higher
        total = tl.dot(weight.to(v.dtype), v, total * shrink[:, None], input_precision="ieee")
    out = (place * heads + head) * splits + tl.program_id(2)
    tl.store(sums + out * 2, top, mask=number < n)
    tl.store(sums + out * 2 + 1, mass, mask=number < n)
    tl.store(parts + out[:, None] * HEAD + lane[None, :], total, mask=asked)


@jit("splits")
def _join(parts, sums, out, splits, HEAD: tl.constexpr):
    """One program per query and head."""
    place, lane = tl.program_id(0).to(tl.int64), tl.arange(0, HEAD)
    top, mass, total = -1e30, 0.0, tl.zeros([HEAD], tl.float32)
    for split in range(splits):
        own = tl.load(sums + (place * splits + split) * 2)
        higher = tl.maximum(top, own)
        shrink, share = tl.exp(top - higher), tl.exp(own - higher)
        mass = mass * shrink + tl.load(sums + (place * splits + split) * 2 + 1) * share
        total = total * shrink + tl.load(parts + (place * splits + split) * HEAD + lane) * share
        top = higher
    tl.store(out + place * HEAD + lane, (total / tl.maximum(mass, 1e-30)).to(out.dtype.element_ty))


def splits_of(rows: int, heads: int, queries: int) -> int:
    """Into how many parts the keys of a row are split, by shapes alone."""
    programs = rows * heads * -(-queries // _SPLIT.blocks["BLOCK_Q"])
    return max(1, min(MOST_SPLITS, PROGRAMS // programs))


def split_attention(
    query: Tensor, key: Tensor, value: Tensor, first: Tensor, count: Tensor, longest: int, triton: bool = False
) -> Tensor:
    """``reference``. triton: the kernels, equal up to the order of the sums and to weights in the values' dtype."""
    if not triton:
        return reference(query, key, value, first, count, longest)
    (total, heads, size), rows = query.shape, len(count)
    n, query = total // rows, query.contiguous()
    splits = min(splits_of(rows, heads, n), -(-longest // _SPLIT.blocks["BLOCK_K"]))
    parts = query.new_empty(total, heads, splits, size, dtype=torch.float32)
    sums, out = query.new_empty(total, heads, splits, 2, dtype=torch.float32), torch.empty_like(query)
    _split[(rows * heads, -(-n // _SPLIT.blocks["BLOCK_Q"]), splits)](
        query, key, value, first, count, parts, sums, n, heads, heads // key.shape[1], heads * size, key.stride(0),
        value.stride(0), key.stride(1), value.stride(1), splits, size**-0.5,
        UPCAST=interpreted() and query.itemsize == 2, HEAD=size, **_SPLIT.arguments,
    )  # fmt: skip
    _join[(total * heads,)](parts, sums, out, splits, HEAD=size, **_JOIN.arguments)
    return out


BUILDS = (
    Build(
        "split_attention-bf16", _split, _SPLIT,
        dict.fromkeys(("query", "key", "value"), "*bf16") | dict.fromkeys(("parts", "sums"), "*fp32")
        | dict.fromkeys(("first", "count"), "*i32") | {"n": "i32", "heads": "i32", "groups": "i32", "splits": "i32",
        **dict.fromkeys(("q_step", "k_step", "v_step", "k_head", "v_head"), "i32/16"), "scale": "fp32"},
        {"UPCAST": False, "HEAD": BUILT_HEAD},
    ),
    Build(
        "split_attention_join-bf16", _join, _JOIN,
        {"parts": "*fp32", "sums": "*fp32", "out": "*bf16", "splits": "i32"}, {"HEAD": BUILT_HEAD},
    ),
)  # fmt: skip
