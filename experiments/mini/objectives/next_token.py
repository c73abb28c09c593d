"""An autoregressive model: every token of the answer from those before it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tokenizers import Tokenizer

from dllm.models.network.visibility import ContextCausal
from experiments.mini.objectives.streams import FromStreams, Streams, drawn, grouped
from experiments.mini.recipe import Recipe

ENDS = 3  # ends of text after the first, at most: decoded further, a text stays at its end


class NextToken(FromStreams):
    def batches(self, vocab: Tokenizer, recipe: Recipe, step: int) -> Sequence[Streams]:
        rows, _ = drawn(vocab, recipe, step, canvas_of)
        return grouped(rows, ContextCausal(1), 1, 1.0, None)


def canvas_of(rng: Random, answer: int) -> int:
    return answer + 1 + rng.randint(0, ENDS)
