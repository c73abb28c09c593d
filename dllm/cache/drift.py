"""What Elastic-Cache measures: attention scores of a few rows, how much they changed, and what they point at."""

from __future__ import annotations

import torch
from torch import Tensor

SIMILARITIES = ("heads", "keys")


def attention_scores(query: Tensor, keys: Tensor, visible: Tensor | None) -> Tensor:
    """Scores [B, H, r, S] before the softmax, in float32 or wider, of queries [B, r, H, h] over keys [B, H_kv, S, h];
    -inf where not visible [B, S]."""
    heads, shared = query.shape[2], keys.shape[1]
    grouped = query.unflatten(2, (shared, heads // shared)).permute(0, 2, 3, 1, 4).flatten(2, 3)  # [B, H_kv, g r, h]
    scores = (grouped * query.shape[-1] ** -0.5) @ keys.transpose(-1, -2)
    if visible is not None:
        scores = scores.masked_fill(~visible[:, None, None], -torch.inf)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return wide.unflatten(2, (heads // shared, -1)).flatten(1, 2)


def mean_of(similarity: Tensor, real: Tensor) -> Tensor:
    """Mean of the real rows' similarities [B, r], one per batch row [B]."""
    return (similarity * real).sum(1) / real.sum(1).clamp(min=1)
