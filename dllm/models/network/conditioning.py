"""Embeddings that some queries of a call are given from the forward before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Conditioning:
    """Of the queries of one call. A network of two passes adds ``soft`` to what its denoised queries show, by a layer
    of its own, and runs the others by the causal pass (self-conditioning, arXiv 2208.04202). In any other network it
    takes the place of the embedding, before that is scaled."""

    where: Tensor  # [b, n] queries that are given an embedding
    # [b, n, D] that embedding: what was expected there after the last forward (0 in the first), or a mixture
    soft: Tensor

    @staticmethod
    def joined(calls: Sequence[Conditioning]) -> Conditioning:
        """Those of several calls as one stream [1, T]."""
        return Conditioning(
            torch.cat([call.where.flatten() for call in calls])[None],
            torch.cat([call.soft.flatten(0, 1) for call in calls])[None],
        )

    def over(self, x: Tensor) -> Tensor:
        """The embeddings x [b, n, D] with ``soft`` substituted where ``where`` holds."""
        return torch.where(self.where[..., None], self.soft, x)
