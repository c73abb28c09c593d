"""Attention as a statistic: what a part may ask for, and what it finds in its scores. ``dllm.loop.probe`` makes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AttentionNeed:
    """Which attention weights a part needs, as ``Scores.attention``: a mean over heads and layers. In papers: attention
    map."""

    layers: int | None = None  # the mean is over so many of the last layers (None: the last quarter)
    received: bool = False  # also what each column gets on average; papers: column sums
    # in models that predict a token at the position before it, read the token's own query instead of that one
    unshifted: bool = False

    def of(self, count: int) -> range:
        """Which of a model's ``count`` layers these are."""
        return range(count - (-(-count // 4) if self.layers is None else self.layers), count)


@dataclass(frozen=True)
class AttentionWeights:
    """Softmax weights of one forward, float32 or wider, averaged over heads and layers as ``AttentionNeed`` says. Keys
    that a cache holds from earlier forwards give the weights that these keys have, as in the attention itself. In
    papers: attention map."""

    columns: Tensor  # [N, m] the masks of the open blocks, ascending (L: no column)
    # [N, m, L] of the rows that predict them on every column; 0 on what such a row does not see, and for a row that
    # this forward does not compute
    weights: Tensor
    # [N, L] what each column gets on average from the columns that this forward computes (None: nobody asked); papers:
    # attention sinks
    received: Tensor | None

    def between_masks(self, pairs: Tensor) -> Tensor:
        """``pairs`` [N, m, L], such as the weights, of those columns alone [N, m, m]."""
        inside = self.columns.clamp(max=pairs.shape[2] - 1)
        return pairs.gather(2, inside[:, None].expand(-1, inside.shape[1], -1))

    def at_masks(self, values: Tensor) -> Tensor:
        """values [N, L] at those columns [N, m]; 0 where there is none."""
        inside = self.columns.clamp(max=values.shape[1] - 1)
        return values.gather(1, inside).masked_fill(self.columns >= values.shape[1], 0)

    def scatter_to(self, values: Tensor, over: Tensor) -> Tensor:
        """``over`` [N, L] with values [N, m] at those columns."""
        return torch.cat([over, over[:, :1]], 1).scatter(1, self.columns, values)[:, :-1]
