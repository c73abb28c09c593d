"""Other vectors for known names: a model that met the same six hundred in all of its training leans on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from dllm.models.network.transformer import Transformer
from dllm.tasks.mini import lexicon
from experiments.mini.recipe import LETTERS, letter_waves


@dataclass(frozen=True)
class Redraw:
    """ids [N] of the names. spelt [N, D]: the part of their embeddings that comes from their letters, by which they are
    sorted; the rest is drawn again, ``spread`` its standard deviation."""

    ids: Tensor
    spelt: Tensor
    spread: float

    @contextmanager
    def drawn(self, model: Transformer, share: float, seed: str) -> Iterator[None]:
        """A ``share`` of the names with other rows in embedding and head, until the block ends. Training holds these
        rows fixed, so that nothing learnt is lost when the old ones come back."""
        generator = torch.Generator().manual_seed(Random(f"names/{seed}").getrandbits(63))
        chosen = torch.rand(len(self.ids), generator=generator) < share
        rest = self.spread * torch.randn(self.spelt.shape, generator=generator)
        rows, at = (self.spelt + rest)[chosen], self.ids[chosen].to(model.device)
        scaled = ((model.embed.weight, 1.0), (model.lm_head.weight, rows.shape[1] ** -0.5))
        before = [matrix.detach()[at].clone() for matrix, _ in scaled]
        put(at, [(matrix, (scale * rows).to(model.device)) for matrix, scale in scaled])
        try:
            yield
        finally:
            put(at, [(matrix, old) for (matrix, _), old in zip(scaled, before, strict=True)])


@torch.no_grad()
def put(at: Tensor, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Rows [n, D] into matrices [V, D] at these ids."""
    for matrix, rows in pairs:
        matrix[at] = rows


def redraw_of(vocab: Tokenizer, rows: Tensor) -> Redraw:
    """Of the names that training knows, less the towns, which are always the same sixteen; rows [V, D]: the embeddings.

    The letters' part is what a linear function of the letters' waves says of a row, the rest was drawn for each word by
    itself: least squares over all names, new ones too, find the one.
    """
    known = [name for name in lexicon.NAMES if name not in lexicon.TOWNS]
    names = (*known, *lexicon.NEW_NAMES)
    ids = torch.tensor([vocab.encode(name).ids[0] for name in names])
    given = torch.tensor([[1.0, *waves(name.lower())] for name in names], dtype=torch.float64)
    held = rows.cpu()[ids].double()
    spelt = given @ torch.linalg.lstsq(given, held, driver="gelsd").solution
    return Redraw(ids[: len(known)], spelt[: len(known)].float(), float((held - spelt).std()))


def waves(word: str) -> list[float]:
    """Of the letters that count for an embedding."""
    return [wave for place in range(len(LETTERS)) for wave in letter_waves(word[place : place + 1])]
