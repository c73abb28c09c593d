"""Masked diffusion with full attention (LLaDA, Dream): masks all over the answer, each predicted from all the rest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from dllm.models.network.transformer import Transformer
from experiments.mini import data, tokenizer
from experiments.mini.data import Batch
from experiments.mini.forward import logits_at
from experiments.mini.objectives.base import Objective
from experiments.mini.recipe import Recipe


class Masked(Objective[Batch]):
    """``data.make_batches``, of whose rows a share is made harder by the model itself."""

    def batches(self, vocab: Tokenizer, recipe: Recipe, step: int) -> Sequence[Batch]:
        return data.make_batches(
            vocab,
            recipe.model,
            marks_of(recipe.model),
            recipe.batch,
            recipe.progress(step),
            recipe.seed,
            step,
            data.MIXES[recipe.requests],
        )

    def hardened(self, model: Transformer, batch: Batch, recipe: Recipe, seed: int) -> Batch:
        return harden(model, batch, recipe.hard_share, seed)

    def losses(self, model: Transformer, batch: Batch) -> Tensor:
        return losses_of(model, batch)


@cache
def marks_of(model: str) -> Tensor:
    return data.structure(tokenizer.build(model))


@torch.no_grad()
def harden(model: Transformer, batch: Batch, share: float, seed: int) -> Batch:
    """The batch with the masks of its last rows moved to where the model, seeing no answer, least expects the token.

    What is expected is committed first when decoding, so these are the states in which the rest is decided: a name is
    replaced at the last mask, if all others were copied. Masks where the model is least sure of any token left
    replace_random at 78 (200 items), and 1,500 more steps of these brought it to 84.
    """
    rows = round(share * len(batch.tokens))
    if not rows:
        return batch
    answer, shift = batch.answer[-rows:], model.config.prediction_shift
    at, column = answer.nonzero(as_tuple=True)
    tokens = batch.target[-rows:].masked_fill(answer, tokenizer.MASK)
    logits = logits_at(model, tokens, batch.visible(shift)[-rows:], at, column - shift)
    expected = logits.log_softmax(-1).gather(1, batch.target[-rows:][at, column][:, None]).squeeze(1)
    expected = torch.zeros(answer.shape, device=expected.device).index_put((at, column), expected)
    return data.mask_least_expected(batch, expected, rows, torch.Generator().manual_seed(seed))


def losses_of(model: Transformer, batch: Batch) -> Tensor:
    """Cross entropies [M] of the masked positions; a model of prediction shift 1 predicts i at i - 1."""
    shift = model.config.prediction_shift
    rows, columns = batch.masked.nonzero(as_tuple=True)
    logits = logits_at(model, batch.tokens, batch.visible(shift), rows, columns - shift)
    return F.cross_entropy(logits, batch.target[batch.masked], reduction="none")
