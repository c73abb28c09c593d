"""Attention by blocks of keys: which blocks the queries of a block point to most, and attention over these alone.

The definition is attention under a mask. A CPU gathers the keys that each block of queries names. A GPU walks the lists
of blocks (flex attention), which copies no key. Columns of a row follow one another, its valid ones first.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.common.ranking import top_k_mask
from dllm.models.network.experts import at_least_float32

FLEX_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # what flex attention multiplies


def find_pattern(
    query: Tensor,
    keys: Tensor,
    valid: Tensor,
    answer: Tensor,
    select: float,
    size: int,
    scale: str = "head_dim",
    ranks: int = 1,
) -> Tensor:
    """Which blocks of keys each block of queries attends to, [b, H, blocks, blocks].

    query [b, n, H, h], keys [b, H_kv, n, h]: of the columns 0 to n - 1, ``valid`` [b, n] ones first. answer [b]: first
    block that counts as answer. select: share of the blocks; size: columns of one. Attention is summed over the
    queries of a block and over each block of keys; of equals the lowest block is taken. ranks: how many have H heads
    each.
    """
    (n, heads, features), wide = query.shape[1:], at_least_float32(query.dtype)
    blocks, factor = -(-n // size), (features if scale == "head_dim" else ranks * heads) ** -0.5
    keys = keys.to(wide).repeat_interleave(heads // keys.shape[1], 1).transpose(2, 3)
    number = torch.arange(blocks, device=query.device)
    exist = number * size < valid.sum(1, keepdim=True)  # [b, blocks]
    late = number >= answer[:, None]
    last = (torch.arange(n, device=query.device) // size) >= answer[:, None]  # [b, n] keys of the answer's blocks
    first_count, last_count = chosen_count(exist.sum(1), select), chosen_count((exist & late).sum(1), select)
    out = []
    for begin in range(0, n, size):
        part = query[:, begin : begin + size].to(wide).transpose(1, 2)
        scores = part @ keys * factor  # [b, H, rows, n]
        rows = valid[:, None, begin : begin + size, None]
        all_, late_sums = (block_sums(scores, valid & among, rows, size) for among in (torch.ones_like(last), last))
        pattern = best(all_, exist, first_count) & ~late[:, None] | best(late_sums, exist & late, last_count)
        out.append(pattern)
    return torch.stack(out, 2)


def chosen_count(blocks: Tensor, select: float) -> Tensor:
    """How many of ``blocks`` [b] are chosen."""
    return (blocks.double() * select).long() + 1


def block_sums(scores: Tensor, among: Tensor, rows: Tensor, size: int) -> Tensor:
    """Attention [b, H, blocks] by ``scores`` [b, H, r, n] over the keys ``among`` [b, n], summed over the valid
    ``rows`` [b, 1, r, 1] and over each block of keys."""
    weights = scores.masked_fill(~among[:, None, None], -torch.inf).softmax(-1)
    weights = torch.where(rows, weights, 0.0).nan_to_num(0.0)  # a row that ends before the answer's blocks has no keys
    return F.pad(weights.sum(2), (0, -scores.shape[-1] % size)).unflatten(-1, (-1, size)).sum(-1)


def best(score: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """The ``count`` [b] blocks of the largest score [b, H, blocks] ``among`` [b, blocks], for every head."""
    heads = score.shape[1]
    among, count = among.repeat_interleave(heads, 0), count.repeat_interleave(heads)
    # Float32 as published: products of every query with every key in float64 would take a GPU 30 times as long.
    return top_k_mask(score.flatten(0, 1).double(), among, count).unflatten(0, (-1, heads))


def live(pattern: Tensor, valid: Tensor, size: int) -> Tensor:
    """The pattern without blocks whose columns are all cut off; a block of queries that is left without any attends to
    the last one that is not."""
    blocks = F.pad(valid, (0, -valid.shape[1] % size)).unflatten(1, (-1, size)).any(-1)  # [b, blocks]
    visible_pattern = pattern & blocks[:, None, None]
    last = torch.arange(blocks.shape[1], device=valid.device) == blocks.sum(1, keepdim=True) - 1
    return visible_pattern | (~visible_pattern.any(-1, keepdim=True) & last[:, None, None])


def attend_by_blocks(
    query: Tensor, keys: Tensor, values: Tensor, pattern: Tensor, valid: Tensor, size: int, most: int
) -> Tensor:
    """``attend_blocks``, by flex attention on a GPU that has a kernel for it."""
    tiles = size % 128 == 0 or size in (16, 32, 64)
    if query.is_cuda and tiles and query.dtype in FLEX_DTYPES:
        return attend_by_flex(query, keys, values, pattern, valid, size)
    return attend_blocks(query, keys, values, pattern, valid, size, most)


def attend_blocks(
    query: Tensor, keys: Tensor, values: Tensor, pattern: Tensor, valid: Tensor, size: int, most: int
) -> Tensor:
    """Attention [b, n, H * h] of query [b, n, H, h] over those blocks of keys and values [b, H_kv, n, h] that the
    pattern [b, H, blocks, blocks] names for each head and block of queries; valid [b, n]: columns that are keys. most:
    no block of queries attends to more blocks."""
    pattern, (n, heads) = live(pattern, valid, size), query.shape[1:3]
    keys, values = (F.pad(tensor, (0, 0, 0, -n % size)).unflatten(2, (-1, size)) for tensor in (keys, values))
    # [b, H, blocks, size, h]
    keys, values = (tensor.repeat_interleave(heads // tensor.shape[1], 1) for tensor in (keys, values))
    is_key = F.pad(valid, (0, -n % size)).unflatten(1, (-1, size))  # [b, blocks, size]
    row, head = torch.arange(len(query), device=query.device)[:, None, None], torch.arange(heads, device=query.device)
    out = []
    for number, begin in enumerate(range(0, n, size)):
        in_pattern = pattern[:, :, number]  # [b, H, blocks]
        order = pattern_first(in_pattern)[..., :most]
        place = row, head[:, None], order
        mask = (is_key[row, order] & in_pattern.gather(-1, order)[..., None]).flatten(2)  # [b, H, chosen size]
        part = F.scaled_dot_product_attention(
            query[:, begin : begin + size].transpose(1, 2),
            keys[place].flatten(2, 3),
            values[place].flatten(2, 3),
            attn_mask=mask[:, :, None],
        )
        out.append(part.transpose(1, 2).flatten(2))
    return torch.cat(out, 1)


def pattern_first(in_pattern: Tensor) -> Tensor:
    """The numbers of blocks [..., blocks], those ``in_pattern`` first."""
    return in_pattern.byte().sort(dim=-1, descending=True, stable=True).indices


def block_lists(in_pattern: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks are ``in_pattern`` [..., blocks], and a list that begins with them; int32, as flex attention
    reads."""
    return in_pattern.sum(-1).int(), pattern_first(in_pattern).int()


def attend_by_flex(query: Tensor, keys: Tensor, values: Tensor, pattern: Tensor, valid: Tensor, size: int) -> Tensor:
    """The same by flex attention. Only the block in which a row ends is masked key by key."""
    from torch.nn.attention.flex_attention import BlockMask

    pattern, n, count = live(pattern, valid, size), query.shape[1], valid.sum(1)
    ends = torch.arange(size, n + size, size, device=query.device) > count[:, None]  # [b, blocks] not all are keys
    partly, whole = (pattern & rows[:, None, None] for rows in (ends, ~ends))

    def is_key(row: Tensor, head: Tensor, at: Tensor, key: Tensor) -> Tensor:
        return key < count[row]

    mask = BlockMask.from_kv_blocks(
        *block_lists(partly), *block_lists(whole), BLOCK_SIZE=size, mask_mod=is_key, seq_lengths=(n, n)
    )
    tile = {"BLOCK_M": size, "BLOCK_N": size} if size < 128 else {}
    out = flex()(
        query.transpose(1, 2),
        keys,
        values,
        block_mask=mask,
        enable_gqa=query.shape[2] != keys.shape[1],
        kernel_options={"FORCE_USE_FLEX_ATTENTION": True, **tile},
    )
    return out.transpose(1, 2).flatten(2)  # type: ignore[no-any-return]


@cache
def flex() -> Any:
    """Flex attention, compiled at its first use for all shapes: torch's compiler takes a second to import."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)
