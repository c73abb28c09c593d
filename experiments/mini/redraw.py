"""Names with other vectors for a step, so that the blocks cannot learn the few hundred known ones by heart.

A name's embedding is the sum of what its letters say, of what all capitalized words share, and of a part that is its
own. The own part is drawn anew for the step, in the embedding and the row of the head alike; the rest stays, since
sorting reads the letters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from dllm.models.transformer import Transformer


@dataclass(frozen=True)
class Names:
    """ids [N] of the known names, and the own parts [N, width] of their embeddings."""

    ids: Tensor
    own: Tensor

    @contextmanager
    def redrawn(self, model: Transformer, share: float, seed: int) -> Iterator[Tensor]:
        """Inside, a ``share`` of the names has other vectors; gives their ids. Afterwards every row is as before."""
        generator = torch.Generator().manual_seed(seed)  # on the CPU: the same on every device
        chosen = torch.randperm(len(self.ids), generator=generator)[: round(share * len(self.ids))]
        ids, own = self.ids[chosen], self.own[chosen]
        fresh = own.std() * torch.randn(own.shape, generator=generator)
        matrices = (model.embed.weight, model.lm_head.weight)
        before = [matrix.detach()[ids].clone() for matrix in matrices]
        with torch.no_grad():
            rows = before[0] + (fresh - own).to(before[0])
            for matrix, scale in zip(matrices, (1.0, rows.shape[1] ** -0.5), strict=True):
                matrix[ids] = rows * scale
        try:
            yield ids
        finally:
            with torch.no_grad():
                for matrix, rows in zip(matrices, before, strict=True):
                    matrix[ids] = rows
