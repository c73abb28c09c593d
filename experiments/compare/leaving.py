"""Rows that leave a forward, on a small block-causal model: ``python -m experiments.compare.leaving``.

The model of the tests (4 layers, half-trained) attends by blocks of 16 here. It answers no task well, so its score is
how many positions of an answer are those that it gives without a cache.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch

from dllm.compose.fitted import Parts
from dllm.contract.canvas import Canvas, Request
from dllm.loop.denoise import denoise
from dllm.loop.forward import Forward
from dllm.models.network.transformer import Transformer
from dllm.models.network.visibility import BlockCausal
from dllm.models.text.ids import Ids
from dllm.models.weights.weights import load_model, read_model_config
from dllm.parts.blocks.fixed import Fixed
from dllm.parts.cache.base import Cache
from dllm.parts.cache.finished import Finished
from dllm.parts.cache.focus import Focus
from dllm.parts.cache.none import NoCache
from dllm.parts.eos.none import FullLength
from dllm.parts.samplers.confidence import Confidence
from experiments.support import markdown
from experiments.support.held_out import comparison
from experiments.support.scripts import refusing

FOLDER = Path(__file__).parents[2] / "tests/data/models/tiny-diffcoder"
BLOCK, ANSWER, SYMBOLS = 16, 32, 40
TASKS, ASK, MASK, BEGIN = range(50, 54), 55, 60, 62
CACHES: dict[str, Cache] = {
    "none": NoCache(),
    "finished": Finished(),
    "focus, alpha=null": Focus(None),
    **{f"focus, alpha={alpha}": Focus(alpha) for alpha in (3.0, 1.5, 1.0)},
}


def prompts(count: int, seed: int) -> list[list[int]]:
    """A task and 4 to 24 symbols each."""
    dice = random.Random(seed)
    return [
        [BEGIN, dice.choice(TASKS), *(dice.randrange(SYMBOLS) for _ in range(dice.randint(4, 24))), ASK]
        for _ in range(count)
    ]


def decoded(model: Transformer, cache: Cache, prompt: list[int]) -> tuple[list[int], int, list[float]]:
    """The answer, how many forwards it took, and the rows that each layer computed."""
    parts = Parts(Confidence(0.9), Fixed(BLOCK), cache, FullLength())
    length = ANSWER + -(len(prompt) + ANSWER) % BLOCK
    canvas = Canvas.of([Request.answer(prompt, length, MASK)], 0, "cpu", True)
    with torch.inference_mode():
        *turns, last = denoise(canvas, Forward.of(model, Ids(MASK, -1, ()), parts), parts)
    rows = last.ledger.queries[0].expand(model.config.layers)
    return last.candidates.tokens[0, len(prompt) :].tolist(), len(turns) + 1, rows.tolist()


@refusing
def main(arguments: list[str] | None = None) -> int:
    given = comparison(__doc__, 24, "prompts", ()).parse_args(arguments)
    config = replace(read_model_config(FOLDER), attention=BlockCausal(BLOCK))
    model = load_model(FOLDER, dtype=torch.float32, config=config)
    print(markdown.head(("cache", "as without, %", "forwards", "rows of the first layer", "rows of each other layer")))
    asked, plain = prompts(given.count, given.seed), list[list[int]]()
    for label, cache in CACHES.items():
        answers, forwards, rows = zip(*(decoded(model, cache, prompt) for prompt in asked), strict=True)
        plain = plain or list(answers)
        pairs = [pair for one, other in zip(answers, plain, strict=True) for pair in zip(one, other, strict=True)]
        alike = 100 * sum(one == other for one, other in pairs) / len(pairs)
        first, *_, last = (mean(one) for one in zip(*rows, strict=True))
        print(
            markdown.line((label, f"{alike:.0f}", *(f"{one:.1f}" for one in (mean(forwards), first, last)))), flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
