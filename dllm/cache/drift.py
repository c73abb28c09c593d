"""What Elastic-Cache measures: attention weights of a few rows, and which columns get most of them."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.cache.columns import gather_rows
from dllm.contract.canvas import packed
from dllm.models.attention import Visible, attend, attention_weights
from dllm.models.memory import DeviceCopies


def attended(
    query: Tensor, keys: Tensor, values: Tensor, visible: Visible, again: Tensor | None, tiled: bool = False
) -> tuple[Tensor, Tensor]:
    """Attention [B, n, H * h] of queries [B, n, H, h], and the weights [B, H, m, S] of the rows ``again`` [B, m]. These
    are computed a second time, because fused attention returns none. again None: the weights of all rows are computed
    first and serve attention too. That is faster for few rows, but in bfloat16 it would round the scores, which fused
    attention does not. tiled: as in ``attend``, with ``again``."""
    if again is not None:
        weights = attention_weights(gather_rows(query, again), keys, visible.mask)
        return attend(query, keys, values, visible, tiled=tiled), weights
    weights, (batch, shared, length, width) = attention_weights(query, keys, visible.mask), keys.shape
    # One batch of three dimensions: with four torch's product takes 1.8 times as long.
    out = torch.bmm(weights.view(batch * shared, -1, length), values.flatten(0, 1))
    return out.view(batch, query.shape[2], -1, width).transpose(1, 2).flatten(2), weights


def attention_received(weights: Tensor, real: Tensor) -> Tensor:
    """Attention [B, S] that every key receives, of weights [B, H, m, S], summed over heads and ``real`` rows [B, m]."""
    return (weights.sum(1) * real[:, :, None]).sum(1)


def attention_similarity(old: Tensor, new: Tensor, keys: Tensor, axis: str) -> Tensor:
    """Similarity [B, m] of attention rows [B, H, m, S], which are 0 at hidden keys. Equal rows have 1. keys [B]: how
    many are visible. With c = cosine:

        axis=heads: mean over visible keys s of c(old[:, s], new[:, s]), vectors over the heads (the published code)
        axis=keys:  mean over heads h of c(old[h, :], new[h, :]), vectors over the keys (arXiv 2510.14973)

    Norms below 1e-8 count as 1e-8.
    """
    if axis == "keys":
        return cosine(old, new, 3).mean(1)
    return cosine(old, new, 1).sum(-1) / keys[:, None]


def cosine(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """``F.cosine_similarity`` along ``dim``. Its own vector norms take 20 times as long over an outer axis of a CPU."""
    squares = [(x * x).sum(dim).clamp_(min=1e-16) for x in (a, b)]
    return (a * b).sum(dim) / (squares[0] * squares[1]).sqrt_()


def strongest(total: Tensor, count: int) -> Tensor:
    """A mask of the ``count`` largest of each row [..., S]; of equals the first, which topk does not promise."""
    chosen = torch.zeros_like(total, dtype=torch.bool)
    for _ in range(count):
        chosen = chosen.scatter(-1, total.masked_fill(chosen, -torch.inf).argmax(-1, keepdim=True), True)
    return chosen


class PreviousAttention:
    """Weights of the rows watched in the last forward, by layer. For a row that is still watched they are the old
    weights of this forward: neither its query nor the keys have changed in between."""

    def __init__(self) -> None:
        self.columns: Tensor | None = None
        self.last: dict[int, Tensor] = {}
        self.now: dict[int, Tensor] = {}

    def match(self, watched: Tensor, columns: Tensor, keys: int, same_keys: bool) -> Tensor:
        """Begin a forward that watches ``watched`` [B, L] over the first ``keys`` columns. Returns the watched columns
        [B, r], padded with L: first those watched before, then the new ones."""
        length, before = len(columns), self.columns
        same_keys = same_keys and all(weights.shape[-1] == keys for weights in self.now.values())
        self.last, self.now = (self.now if same_keys else {}), {}
        self.source, self.copies = None, DeviceCopies()
        if not self.last or before is None:
            self.columns = self.missing = packed(watched, columns)
        else:
            held = watched.new_zeros(len(watched), length + 1).scatter(1, before, True)[:, :length]
            kept, self.missing = packed(watched & held, columns), packed(watched & ~held, columns)
            if not torch.equal(kept, before):
                self.source = (kept[:, :, None] == before[:, None, :]).to(torch.uint8).argmax(2)
            self.columns = torch.cat([kept, self.missing], 1)
        return self.columns

    def lacking(self, layer: int) -> Tensor:
        """Columns [B, m] whose old weights must be computed, on the canvas's device."""
        assert self.columns is not None
        return self.missing if layer in self.last else self.columns

    def pair(self, layer: int, computed: Tensor | None, new: Tensor) -> tuple[Tensor, Tensor]:
        """Old and ``new`` weights [B, H, r, S] of all watched rows. The new ones are stored for the next forward. The
        old ones of the rows in ``lacking`` are ``computed`` [B, H, m, S]."""
        last, self.now[layer] = self.last.get(layer), new
        if last is not None and self.source is not None:
            last = self._rows(last, self.copies(self.source, last.device))
        old = [part for part in (last, computed) if part is not None]
        return old[0] if len(old) == 1 else torch.cat(old, 2), new

    def _rows(self, weights: Tensor, at: Tensor) -> Tensor:
        """Rows ``at`` [B, r] of weights [B, H, m, S]."""
        if len(at) == 1:  # four times as fast
            return weights.index_select(2, at[0])
        return weights.transpose(1, 2)[torch.arange(len(at), device=at.device)[:, None], at].transpose(1, 2)

    def select(self, rows: Tensor) -> None:
        copies = DeviceCopies()
        self.now = {layer: weights[copies(rows, weights.device)] for layer, weights in self.now.items()}
        self.columns = None if self.columns is None else self.columns[rows]
