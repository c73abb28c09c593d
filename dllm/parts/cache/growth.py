"""Which masks of a block FOCUS expects to be decided: those whose importance grows from the first to the second layer.

Letters: B rows of the batch, m masks of each, ascending by column.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.common.ranks import ALONE, Ranks


def importance(query: Tensor, key: Tensor, real: Tensor, scale: float, ranks: Ranks = ALONE) -> Tensor:
    """How much the masks attend to each of them [B, m], from their rotated queries [B, m, H, h] and keys
    [B, H_kv, m, h]. real [B, m]: which are masks. Products with keys are pooled over neighbours in the list before the
    softmax (width 3), and its weights are summed over heads and queries. ranks: H counts the heads of one.

    In float64 for models of 32 bits: differences decide which rows stay, and float32 would add its own noise."""
    wide = torch.float64 if query.dtype.itemsize >= 4 else torch.float32
    queries = query.to(wide).transpose(1, 2).unflatten(1, (key.shape[1], -1))  # [B, H_kv, H / H_kv, m, h]
    weights = (queries @ key.to(wide).mT[:, :, None]).flatten(1, 2) * scale
    is_padding = ~real[:, None, None]
    scores = F.max_pool1d(weights.masked_fill(is_padding, -torch.inf).flatten(0, 1), 3, 1, 1).view_as(weights)
    shares = scores.masked_fill(is_padding, -torch.inf).softmax(-1)
    return ranks.sum(shares.masked_fill(~real[:, None, :, None], 0).sum((1, 2)))


def chosen_masks(growth: Tensor, columns: Tensor, real: Tensor, target: Tensor) -> Tensor:
    """Which masks [B, m] stay for what they promise: the ``target`` [B] of largest ``growth`` [B, m] (of equals the
    first), or all at least one standard deviation above the mean, if these are as many. Of two masks in neighbouring
    ``columns`` [B, m] the left one stays where the right one was chosen."""
    order = growth.masked_fill(~real, -torch.inf).argsort(dim=1, descending=True, stable=True)
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    place = torch.empty_like(order).scatter(1, order, places)
    count, some = real.sum(1, keepdim=True), growth.masked_fill(~real, 0)
    mean = some.sum(1, keepdim=True) / count
    spread = ((some - mean).masked_fill(~real, 0).square().sum(1, keepdim=True) / count).sqrt()
    high = real & (growth >= mean + spread)
    mask = torch.where((high.sum(1) >= target)[:, None], high, real & (place < target[:, None]))
    adjacent = (columns[:, 1:] == columns[:, :-1] + 1) & mask[:, 1:]
    return mask | F.pad(adjacent, (0, 1)) & real
