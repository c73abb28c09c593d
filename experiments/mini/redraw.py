"""Other vectors for known names: a model that met the same six hundred in all of its training leans on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from dllm.models.transformer import Transformer
from experiments.mini.recipe import LETTERS, letter_waves


@dataclass(frozen=True)
class Redraw:
    """ids [N] of the names. spelt [N, D]: the part of their embeddings that comes from their letters, by which they are
    sorted; the rest is drawn anew, ``spread`` its standard deviation."""

    ids: Tensor
    spelt: Tensor
    spread: float

    @contextmanager
    def drawn(self, model: Transformer, share: float, seed: int) -> Iterator[None]:
        """A ``share`` of the names with other rows in embedding and head, until the block ends. Training holds these
        rows fixed, so that nothing learnt is lost when the old ones come back."""
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.rand(len(self.ids), generator=generator) < share
        rest = self.spread * torch.randn(self.spelt.shape, generator=generator)
        rows, at = (self.spelt + rest)[chosen], self.ids[chosen].to(model.device)
        scaled = ((model.embed.weight, 1.0), (model.lm_head.weight, rows.shape[1] ** -0.5))
        before = [matrix.detach()[at].clone() for matrix, _ in scaled]
        put(at, [(matrix, (scale * rows).to(model.device)) for matrix, scale in scaled])
        yield
        put(at, [(matrix, old) for (matrix, _), old in zip(scaled, before, strict=True)])


@torch.no_grad()
def put(at: Tensor, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Rows [n, D] into matrices [V, D] at these ids."""
    for matrix, rows in pairs:
        matrix[at] = rows


def redraw_of(words: Sequence[str], ids: Sequence[int], rows: Tensor, known: int) -> Redraw:
    """Of the first ``known`` of these words, which are names; ids of all; rows [V, D]: embeddings.

    The letters' part is what a linear function of the letters' waves says of a row, the rest is drawn for each word by
    itself: least squares find the one from all of them.
    """
    waves = [[value for place in range(len(LETTERS)) for value in letter_waves(word.lower()[place : place + 1])]
             for word in words]  # fmt: skip
    given = torch.cat([torch.tensor(waves, dtype=torch.float64), torch.ones(len(words), 1, dtype=torch.float64)], 1)
    spelt = given @ torch.linalg.lstsq(given, rows[ids].double(), driver="gelsd").solution
    spread = float((rows[ids] - spelt).std())
    return Redraw(torch.tensor(ids[:known]), spelt[:known].float(), spread)
