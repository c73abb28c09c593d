"""Logits beyond the statistics of a row: all of them, or those of a few tokens.

Letters as in ``dllm.contract``: N candidates, L columns, V tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Logits:
    """The model's logits. In papers: logits."""

    values: Tensor  # [N, n, V] -inf for banned ids; papers: logits
    columns: Tensor  # [N, n] their columns (L: no column)


@dataclass(frozen=True)
class Lookup:
    """Logits of a few tokens at each scored position, by a product with the head's rows of these tokens alone."""

    columns: Tensor  # [N, n] the scored columns (L: no column)
    source: Tensor  # [N, n, ...] what ``find`` reads
    find: Callable[[Tensor, Tensor], Tensor]  # makes logits [k, K] of ids [k, K]
    triton: bool = False  # our kernels run
    banned: Tensor | None = None  # [N, n, V] ids that a constraint keeps out (None: none)

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits [N, n, K] of ``ids`` [N, n, K] at the scored rows."""
        found = self.find(self.source.flatten(0, 1), ids.flatten(0, 1)).view(ids.shape)
        return found if self.banned is None else found.masked_fill(self.banned.gather(-1, ids), -torch.inf)
