"""What Elastic-Cache measures: attention weights of a few rows, and which columns get most of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from dllm.common.ranks import ALONE, Ranks
from dllm.models.network.attention import Visible, attend, attention_weights


def attention_and_weights(
    query: Tensor, keys: Tensor, values: Tensor, visible: Visible, read_queries: Tensor | None, tiled: bool = False
) -> tuple[Tensor, Tensor]:
    """Attention [B, n, H * h] of queries [B, n, H, h], and the weights [B, H, m, S] of ``read_queries`` [B, m, H, h].
    These are computed a second time, because fused attention returns none. read_queries None: the weights of all
    queries are computed first and serve attention too. That is faster for few queries, but in bfloat16 it would round
    the scores, which fused attention does not. tiled: as in ``attend``, with ``read_queries``."""
    if read_queries is not None:
        return attend(query, keys, values, visible, tiled=tiled), attention_weights(read_queries, keys, visible.mask)
    weights, (batch, shared, length, width) = attention_weights(query, keys, visible.mask), keys.shape
    # One batch of three dimensions: with four torch's product takes 1.8 times as long.
    out = torch.bmm(weights.view(batch * shared, -1, length), values.flatten(0, 1))
    return out.view(batch, query.shape[2], -1, width).transpose(1, 2).flatten(2), weights


def attention_received(weights: Tensor, real: Tensor | None) -> Tensor:
    """Attention [B, S] that every key receives: weights [B, H, m, S] summed over heads and ``real`` rows [B, m] (None:
    all of them)."""
    return weights.sum((1, 2)) if real is None else (weights.sum(1) * real[:, :, None]).sum(1)


def products(old: Tensor, new: Tensor, axis: str, ranks: Ranks = ALONE) -> list[Tensor]:
    """What the similarity of attention rows [B, H, m, S], which are 0 at hidden keys, follows from: sums of old new,
    old old and new new, over the heads [B, m, S] or over the keys [B, H, m]. ranks: H counts the heads of one."""
    sums = [(x * y).sum(1 if axis == "heads" else 3) for x, y in ((old, new), (old, old), (new, new))]
    return ranks.sums(sums) if axis == "heads" else sums


def attention_similarity(sums: Sequence[Tensor], keys: Tensor, axis: str, ranks: Ranks = ALONE) -> Tensor:
    """Similarity [l, B, m] of attention rows in l layers, from their ``products``, each with l in front. Equal rows
    have 1. keys [B]: how many are visible. With c = cosine:

        axis=heads: mean over visible keys s of c(old[:, s], new[:, s]), vectors over the heads (the published code)
        axis=keys:  mean over heads h of c(old[h, :], new[h, :]), vectors over the keys (arXiv 2510.14973)

    Norms below 1e-8 count as 1e-8. ``F.cosine_similarity`` has vector norms that take 20 times as long over an outer
    axis of a CPU. All layers at once are a third of the operations.
    """
    product, first, second = sums
    alike = product / (first.clamp(min=1e-16) * second.clamp(min=1e-16)).sqrt_()
    return ranks.mean(alike.mean(2)) if axis == "keys" else alike.sum(-1) / keys[:, None]


def by_layer(parts: Sequence[Tensor], home: torch.device) -> Tensor:
    """What layers found [l, ...] on one device, moved at once from each device."""
    runs = [torch.stack(list(same)).to(home) for _, same in groupby(parts, key=lambda part: part.device)]
    return runs[0] if len(runs) == 1 else torch.cat(runs)


def strongest(total: Tensor, count: int) -> Tensor:
    """A mask of the ``count`` largest of each row [..., S]; of equals the first, which topk does not promise."""
    mask = torch.zeros_like(total, dtype=torch.bool)
    for _ in range(count):
        mask = mask.scatter(-1, total.masked_fill(mask, -torch.inf).argmax(-1, keepdim=True), True)
    return mask
