"""Caches that read fewer keys, on what the mini models have longest: ``python -m experiments.compare.fewer_keys``.

Scores of held-out items: of the tasks with the longest answers by cache, and of lists that follow two other
turns with lists of their own, by the share of keys that stays: what the last turn asks for is a needle among them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from dllm import Decoder, Model, load, part
from dllm.parts.cache.base import Cache
from dllm.prompts import Prompt
from dllm.tasks.mini import tasks as mini
from experiments.support import markdown
from experiments.support.held_out import comparison
from experiments.support.scripts import refusing

BLOCK = 8  # columns of a block of keys: the prompts have 60 to 250
KEPT, SELECTED = (1.0, 0.5, 0.25, 0.1, 0.05, 0.0), (0.75, 0.5, 0.25, 0.0)
NEEDLE, EARLIER = "copy", 2  # turns before the one that is asked


def sparsed(select: float) -> Cache:
    return part("cache", "sparsed", select=select, block_size=BLOCK, full_forwards=2)


def caches() -> Iterator[tuple[str, Cache]]:
    yield from ((name, part("cache", name)) for name in ("none", "dual", "elastic", "sparse_dllm"))
    yield "sparsed, select=0.5", sparsed(0.5)


def shares() -> Iterator[tuple[str, Cache]]:
    yield "none", part("cache", "none")
    yield from ((f"sparse_dllm, keep_ratio={one}", part("cache", "sparse_dllm", keep_ratio=one)) for one in KEPT)
    yield from ((f"sparsed, select={one}", sparsed(one)) for one in SELECTED)


def scores(model: Model, cache: Cache, task: str, earlier: int, seed: int, count: int) -> list[float]:
    """Of items that each follow as many ``earlier`` turns, which are other items with their answers."""
    items = mini.generate(task, seed, count * (earlier + 1))
    asked, others = items[:count], items[count:]
    prompts: list[Prompt] = [
        [
            *(
                message
                for other in others[earlier * number : earlier * (number + 1)]
                for message in (*other.messages, {"role": "assistant", "content": other.answer})
            ),
            *one.messages,
        ]
        for number, one in enumerate(asked)
    ]
    length = mini.longest(task)
    decoder = Decoder(
        model,
        "confidence",
        part("blocks", "fixed", block_length=8),
        cache,
        "fill_after_block",
        gen_length=length,
        batch_size=count,
    )
    return [mini.score(one, row.text)["score"] for one, row in zip(asked, decoder(prompts), strict=True)]


@refusing
def main(arguments: list[str] | None = None) -> int:
    given = comparison(__doc__, 20, "items per task", ("mini-llada",)).parse_args(arguments)
    for name in given.models:
        model = load(name)
        print(f"\n### {model.name}, {NEEDLE} after {EARLIER} turns\n\n{markdown.head(('cache', 'score'))}")
        for label, cache in shares():
            right = scores(model, cache, NEEDLE, EARLIER, given.seed, given.count)
            print(markdown.line((label, markdown.percent(right))), flush=True)
        print(f"\n### {model.name}, longest answers\n\n{markdown.head(('cache', *mini.LONG_ANSWERS))}")
        for label, cache in caches():
            cells = (
                markdown.percent(scores(model, cache, task, 0, given.seed, given.count)) for task in mini.LONG_ANSWERS
            )
            print(markdown.line((label, *cells)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
