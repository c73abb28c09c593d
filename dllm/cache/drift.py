"""What Elastic-Cache measures: attention weights of a few rows, how much they changed, and what they point at."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def attention(query: Tensor, keys: Tensor, visible: Tensor | None) -> Tensor:
    """Softmax weights [B, H, r, S] of queries [B, r, H, h] over keys [B, H_kv, S, h]; 0 where not visible [B, S]."""
    heads, shared = query.shape[2], keys.shape[1]
    grouped = query.unflatten(2, (shared, heads // shared)).permute(0, 2, 3, 1, 4).flatten(2, 3)  # [B, H_kv, g r, h]
    scores = (grouped @ keys.transpose(-1, -2)) * query.shape[-1] ** -0.5
    if visible is not None:
        scores = scores.masked_fill(~visible[:, None, None], -torch.inf)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return wide.softmax(-1).unflatten(2, (heads // shared, -1)).flatten(1, 2)


def over_heads(old: Tensor, new: Tensor, real: Tensor, visible: Tensor | None) -> Tensor:
    """Mean over tracked rows and keys of the cosine between the H weights of each (the released code's axis), [B]."""
    cosine = F.cosine_similarity(old, new, dim=1)  # [B, r, S]
    counts = real[:, :, None].expand_as(cosine)
    counts = counts if visible is None else counts & visible[:, None]
    return (cosine * counts).sum((1, 2)) / counts.sum((1, 2)).clamp(min=1)


def over_keys(old: Tensor, new: Tensor, real: Tensor, visible: Tensor | None) -> Tensor:
    """Mean over heads and tracked rows of the cosine between whole attention rows (the paper's formula), [B]."""
    cosine = F.cosine_similarity(old, new, dim=3).mean(1)  # [B, r]
    return (cosine * real).sum(1) / real.sum(1).clamp(min=1)


Similarity = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
SIMILARITIES: dict[str, Similarity] = {"heads": over_heads, "keys": over_keys}


def received(weights: Tensor, real: Tensor) -> Tensor:
    """Attention that every key gets from the real rows [B, r] of weights [B, H, r, S], all heads together: [B, S]."""
    return (weights * real[:, None, :, None]).sum((1, 2))
