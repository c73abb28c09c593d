"""What Elastic-Cache measures: attention weights of a few rows, how much they changed, and what they point at."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.cache.rows import rows_of
from dllm.models.transformer import attend

SIMILARITIES = ("heads", "keys")


def attention_weights(query: Tensor, keys: Tensor, visible: Tensor | None) -> Tensor:
    """Softmax weights [B, H, r, S], in float32 or wider, of queries [B, r, H, h] over keys [B, H_kv, S, h]; 0 where
    not visible [B, S], of which every row has a key."""
    shared, heads = keys.shape[1], query.shape[2]
    grouped = (query * query.shape[-1] ** -0.5).unflatten(2, (shared, -1)).permute(0, 2, 3, 1, 4)
    scores = product(grouped.flatten(2, 3), keys.transpose(-1, -2)).unflatten(2, (heads // shared, -1)).flatten(1, 2)
    if visible is not None:
        scores = scores.masked_fill(~visible[:, None, None], -torch.inf)
    return scores.softmax(-1, torch.promote_types(scores.dtype, torch.float32))


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of [B, H, n, k] and [B, H, k, m], as one batch: with four dimensions torch takes 1.8 times as long."""
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1)).unflatten(0, a.shape[:2])


def attended(
    query: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None, at: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What queries [B, n, H, h] attend to [B, n, H * h], weights [B, H, m, S], and where [B, r] among their m rows
    those of the queries ``at`` [B, r] are.

    Few rows in float32 are weighed once, and the weights serve both. Fused attention gives none: where it is much
    better (many rows; bfloat16, whose scores it does not round), the rows ``at`` are weighed a second time.
    """
    if query.shape[1] > 2 * at.shape[1] or query.dtype != torch.promote_types(query.dtype, torch.float32):
        weights = attention_weights(rows_of(query, at), keys, visible)
        places = torch.arange(at.shape[1], device=at.device).expand_as(at)
        return attend(query, keys, values, visible), weights, places
    weights = attention_weights(query, keys, visible)
    grouped = weights.unflatten(1, (keys.shape[1], -1)).flatten(2, 3)  # [B, H_kv, g n, S]
    out = product(grouped, values).unflatten(2, (-1, query.shape[1])).flatten(1, 2)
    return out.transpose(1, 2).flatten(2), weights, at


def picked(weights: Tensor, at: Tensor) -> Tensor:
    """Rows ``at`` [B, r] of weights [B, H, n, S], [B, H, r, S]."""
    return rows_of(weights.transpose(1, 2), at).transpose(1, 2)


def mean_of(similarity: Tensor, real: Tensor) -> Tensor:
    """Mean of the real rows' similarities [B, r], one per batch row [B]."""
    return (similarity * real).sum(1) / real.sum(1).clamp(min=1)


def among(at: Tensor, real: Tensor, rows: int) -> Tensor:
    """Which of so many ``rows`` [B, m] the ``real`` ones of ``at`` [B, r] are."""
    return ((at[:, :, None] == torch.arange(rows, device=at.device)) & real[:, :, None]).any(1)


def strongest(total: Tensor, count: int) -> Tensor:
    """The ``count`` largest of each row [B, S], as a mask; the lowest of equals, which topk does not promise."""
    chosen = torch.zeros_like(total, dtype=torch.bool)
    for _ in range(count):
        chosen = chosen.scatter(1, total.masked_fill(chosen, -torch.inf).argmax(1, keepdim=True), True)
    return chosen


class Past:
    """Weights of the rows watched in the last forward, by layer: where a row is still watched they are the old ones of
    this forward, since neither its query nor the keys have changed in between."""

    def __init__(self) -> None:
        self.columns: Tensor | None = None
        self.last: dict[int, Tensor] = {}
        self.now: dict[int, Tensor] = {}

    def match(self, watched: Tensor, length: int, keys: int, same_keys: bool) -> None:
        """Begin a forward that watches columns ``watched`` [B, r] (padded with ``length``) over so many ``keys``."""
        same_keys = same_keys and all(weights.shape[-1] == keys for weights in self.now.values())
        self.last, self.now = (self.now if same_keys else {}), {}
        before, self.columns = self.columns, watched
        self.missing, self.source = watched[:, :0], None
        if not self.last or before is None or torch.equal(before, watched):
            return
        lacks = ~(watched[:, :, None] == before[:, None, :]).any(2) & (watched < length)
        self.missing = torch.where(lacks, watched, length).sort(1).values[:, : int(lacks.sum(1).max())]
        there = torch.cat([before, self.missing], 1)
        self.source = (watched[:, :, None] == there[:, None, :]).to(torch.uint8).argmax(2)

    def lacking(self, layer: int) -> Tensor:
        """Columns [B, m] whose old weights have to be computed."""
        assert self.columns is not None
        return self.missing if layer in self.last else self.columns

    def old(self, layer: int, computed: Tensor | None) -> Tensor:
        """Old weights [B, H, r, S] of all watched rows, with those ``computed`` [B, H, m, S] of the ones that lacked."""
        if layer not in self.last:
            assert computed is not None
            return computed
        weights = self.last[layer] if computed is None else torch.cat([self.last[layer], computed], 2)
        return weights if self.source is None else picked(weights, self.source)

    def select(self, rows: Tensor) -> Past:
        self.now = {layer: weights[rows] for layer, weights in self.now.items()}
        self.columns = None if self.columns is None else self.columns[rows]
        return self
