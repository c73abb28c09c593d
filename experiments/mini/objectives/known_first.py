"""WeDLM's objective (arXiv 2512.22737): masks see all that is known in front of them, and predict themselves."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from tokenizers import Tokenizer

from dllm.models.visibility import CausalByRank
from experiments.mini.objectives.streams import Copies, FromStreams, Streams, drawn, grouped, noise
from experiments.mini.recipe import Recipe

BLOCK = 16  # the window of ``experiment=wedlm``; published training has 32 for the same window


class KnownFirst(FromStreams):
    """Blocks count from the text's first column, so that answers begin anywhere in one. A mask's loss is over the
    share of its block that is masked; the next-token loss of the clean text has the same weight as all of these."""

    def batches(self, vocab: Tokenizer, recipe: Recipe, step: int) -> Sequence[Streams]:
        rows, generator = drawn(vocab, recipe, step, canvas_of)
        first = rows.starts[:, None]
        number = (first + torch.arange(rows.answers.shape[1])) // BLOCK - first // BLOCK
        masked, ratio = noise(number, rows.weight > 0, BLOCK, generator)
        share = rows.shares(masked / ratio.clamp(min=1e-8))
        return grouped(rows, CausalByRank(), 0, 1.0, Copies(number, masked, share))


def canvas_of(rng: Random, answer: int) -> int:
    """With ends of text, up to a window of them: the window runs on after the end."""
    return answer + 1 + rng.randint(0, BLOCK)
