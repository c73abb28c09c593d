"""Guidance against doubted tokens on held-out items of the mini models: ``python -m experiments.compare.doubts``.

Prints a Markdown table per model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from dllm import Decoder, Model, Result, load, part
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments.support import markdown
from experiments.support.held_out import answered, comparison
from experiments.support.scripts import refusing

LENGTH, BATCH = 32, 52
BLOCKS = part("blocks", "fixed", block_length=LENGTH)
GUIDED: dict[str, dict[str, Any]] = {
    "": {},
    ", against the prompt": {"guidance": 1.0},
    ", against doubted tokens": {"guidance": 1.0, "guidance_against": "doubted", "guidance_ratio": 0.3},
}
RULES: dict[str, Any] = {
    "confidence": "confidence", "static, two a forward": part("sampler", "static", steps=LENGTH // 2),
}  # fmt: skip
HEADS = ("score", "of many right answers", "turns", "query rows")


def cells(items: Sequence[Sample], rows: Sequence[Result], right: Sequence[float]) -> tuple[str, ...]:
    """Scores of ``items``, and what the answers cost."""
    free = [one for one, item in zip(right, items, strict=True) if item.task in mini.FREE]
    turns, columns = fmean(row.nfe for row in rows), fmean(row.query_tokens for row in rows)
    return markdown.percent(right), f"{100 * fmean(free):.0f}", f"{turns:.1f}", f"{columns:.0f}"


def guided(model: Model, items: Sequence[Sample]) -> Iterator[tuple[str, ...]]:
    for rule in RULES:
        for name, sampling in GUIDED.items():
            blocks = part("blocks", "fixed", block_length=LENGTH)
            decoder = Decoder(
                model, RULES[rule], blocks, "none", "none", gen_length=LENGTH, batch_size=BATCH, **sampling
            )
            yield rule + name, *cells(items, *answered(decoder, items))


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = comparison(__doc__, 16, "items of each of the 13 tasks with short answers")
    parser.set_defaults(seed=42)
    given = parser.parse_args(arguments)
    for name in given.models:
        model = load(name)
        items = [item for task in mini.SHORT_ANSWERS for item in mini.generate(task, given.seed, given.count)]
        heads = ("decode", *HEADS)
        print(
            f"### {name}, {len(items)} items: guidance\n\n{markdown.table(heads, guided(model, items))}\n", flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
