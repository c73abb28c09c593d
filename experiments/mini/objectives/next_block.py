"""NBDiff's objective (arXiv 2512.06776): a block is filled both ways after causal text, and grows as training goes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from tokenizers import Tokenizer

from dllm.models.network.visibility import ContextCausal
from experiments.mini.objectives.streams import Copies, FromStreams, Streams, drawn, grouped, noise
from experiments.mini.recipe import NBDIFF_BLOCK, Recipe

GROWTH = 0.08  # of the run until the block doubles, from 2: a block of 1 has no masks
NEXT_WEIGHT = 0.5  # of the clean text's loss


class NextBlock(FromStreams):
    """Blocks count from the answer's start. A block's first column is never masked: decoding takes it from the clean
    text before the block is filled."""

    def batches(self, vocab: Tokenizer, recipe: Recipe, step: int) -> Sequence[Streams]:
        rows, generator = drawn(vocab, recipe, step, canvas_of)
        block = block_at(step / recipe.steps)
        column = torch.arange(rows.answers.shape[1]).expand_as(rows.answers)
        masked, _ = noise(column // block, (column % block > 0) & (rows.weight > 0), block, generator)
        copies = Copies(column // block, masked, rows.shares(masked.float()))
        return grouped(rows, ContextCausal(block), 1, NEXT_WEIGHT, copies)


def block_at(progress: float) -> int:
    """Columns of a block when ``progress`` (0 to 1) of the run is over."""
    return int(min(NBDIFF_BLOCK, 2 * 2 ** int(progress / GROWTH)))


def canvas_of(rng: Random, answer: int) -> int:
    """Whole blocks, as they are decoded."""
    return -(-(answer + 1) // NBDIFF_BLOCK) * NBDIFF_BLOCK
