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


def strongest(total: Tensor, count: int) -> Tensor:
    """The ``count`` largest of each row [B, S], as a mask; the lowest of equals, which topk does not promise."""
    chosen = torch.zeros_like(total, dtype=torch.bool)
    for _ in range(count):
        chosen = chosen.scatter(1, total.masked_fill(chosen, -torch.inf).argmax(1, keepdim=True), True)
    return chosen


class Past:
    """Scores of the rows watched in the last forward, by layer: where a row is still watched they are the old ones of
    this forward, since neither its query nor the keys have changed in between."""

    def __init__(self) -> None:
        self.columns: Tensor | None = None
        self.last: dict[int, Tensor] = {}
        self.now: dict[int, Tensor] = {}

    def match(self, watched: Tensor, length: int, keys: int, same_keys: bool) -> None:
        """Begin a forward that watches columns ``watched`` [B, r] (padded with ``length``) over so many ``keys``."""
        same_keys = same_keys and all(scores.shape[-1] == keys for scores in self.now.values())
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
        """Columns [B, m] whose old scores have to be computed."""
        assert self.columns is not None
        return self.missing if layer in self.last else self.columns

    def old(self, layer: int, computed: Tensor | None) -> Tensor:
        """Old scores [B, H, r, S] of all watched rows, with those ``computed`` [B, H, m, S] of the ones that lacked."""
        if layer not in self.last:
            assert computed is not None
            return computed
        scores = self.last[layer] if computed is None else torch.cat([self.last[layer], computed], 2)
        if self.source is None:
            return scores
        batch = torch.arange(len(scores), device=scores.device)[:, None]
        return scores.transpose(1, 2)[batch, self.source].transpose(1, 2)

    def select(self, rows: Tensor) -> Past:
        self.now = {layer: scores[rows] for layer, scores in self.now.items()}
        self.columns = None if self.columns is None else self.columns[rows]
        return self
