"""Names with other vectors for a step, so that the blocks cannot learn the few hundred known ones by heart.

A name's embedding is the sum of what its letters say, of what all capitalized words share, and of a part that is its
own. The own part is drawn anew for the step, in the embedding and the row of the head alike; the rest stays, since
sorting reads the letters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from dllm.errors import UserError
from dllm.models.bundle import shipped_models
from dllm.models.transformer import Transformer
from dllm.tasks.mini import words
from experiments.mini import tokenizer
from experiments.mini.recipe import Recipe, base_of, first_embeddings, recipe_of

ROUNDED = 0.02  # bfloat16 moves an entry of an embedding by at most so much


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


def known_names(model: Transformer, recipe: Recipe, vocab: Tokenizer) -> Names:
    """The names of training but towns, which are always the same sixteen, as they were first drawn. Raises UserError
    where the model has other rows."""
    alone = [word for word in words.NAMES if word not in words.TOWNS]
    ids = torch.tensor(sorted({vocab.encode(word).ids[0] for word in alone}))
    first, own = first_embeddings(origin(recipe), tokenizer.texts(vocab))
    if first.shape[1] != recipe.width or (model.embed.weight.detach().cpu()[ids] - first[ids]).abs().max() > ROUNDED:
        raise UserError(
            f"base={recipe.base!r} has names of other vectors than its recipe draws. Give the folder that training "
            "left, with its training.json, and those of its bases."
        )
    return Names(ids, own[ids])


def origin(recipe: Recipe) -> Recipe:
    """The recipe that drew the first embeddings: that of the last base. What comes along began as mini-llada."""
    if not recipe.base:
        return recipe
    report = base_of(recipe) / "training.json"
    if recipe.base in shipped_models() or not report.is_file():
        return recipe_of("mini-llada")
    return origin(Recipe(**json.loads(report.read_text())["recipe"]))
