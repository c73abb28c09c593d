"""What the denoising pass of a network is given beside tokens: which rows run by it, and what was thought of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Conditioning:
    """Of the queries of one call; those that are not denoised run by the causal pass. In papers: self-conditioning
    (arXiv 2208.04202)."""

    denoised: Tensor  # [b, n] queries of the block that is denoised
    # [b, n, D] the embedding that was expected there after the last forward; 0 in the first
    soft: Tensor

    @staticmethod
    def joined(calls: Sequence[Conditioning]) -> Conditioning:
        """Those of several calls as one stream [1, T]."""
        return Conditioning(
            torch.cat([call.denoised.flatten() for call in calls])[None],
            torch.cat([call.soft.flatten(0, 1) for call in calls])[None],
        )
