"""Exact matches of holes of fixed and unknown size: ``python -m experiments.bench.holes``.

Of a list that is the one right answer, one to four names in a row are a hole of 1, 3, 5 or 7 tokens. Columns are query
tokens of all forwards, those that size the hole among them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from dllm import Decoder, load, part
from dllm.common.terminal import say
from dllm.tasks.mini.tasks import generate
from experiments.support.markdown import table
from experiments.support.scripts import refusing

ASKED = ("copy", "reverse", "sort")
SIZES = (1, 3, 5, 7)
RULES: dict[str, dict[str, Any]] = {
    "length=cal": {"limit": 12, "begin": 4},
    "length=cal length.bias=false": {"limit": 12, "begin": 4, "bias": False},
}


def holes(count: int, seed: int) -> Iterator[tuple[str, str, int, str, str]]:
    """Of each task ``count`` prompts, the text before a hole, its tokens, the text after it, and the whole answer."""
    for task in ASKED:
        draw = Random(f"holes/{task}/{seed}")
        for sample in generate(task, seed, count):
            names, ends, at = sample.truth["output"], [], 0
            for name in names:
                begin = sample.answer.index(name, at)
                at = begin + len(name)
                ends.append((begin, at))
            wide = draw.randint(1, min(len(SIZES), len(names)))
            first = draw.randint(0, len(names) - wide)
            begin, end = ends[first][0], ends[first + wide - 1][1]
            yield sample.prompt, sample.answer[:begin], 2 * wide - 1, sample.answer[end:], sample.answer


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mini-llada")
    parser.add_argument("--count", type=int, default=100, help="holes of each task")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args(arguments)
    model, asked, rows = load(options.model), list(holes(options.count, options.seed)), list[tuple[str, ...]]()
    settings: list[tuple[str, int | None, dict[str, Any]]] = [(f"{size} masks", size, {}) for size in SIZES]
    settings += [("as many as the text has", 0, {})]
    settings += [(name, None, {"length": part("length", "cal", **rule)}) for name, rule in RULES.items()]
    for name, size, setting in settings:
        decoder = Decoder(model, batch_size=50, **setting)
        requests = [decoder.infill([before, size if size or size is None else tokens, after], prompt)
                    for prompt, before, tokens, after, _ in asked]  # fmt: skip
        results, count = decoder(requests), len(asked)
        right = [result.text == answer for result, (*_, answer) in zip(results, asked, strict=True)]
        nfe, columns = sum(one.nfe for one in results) / count, sum(one.query_tokens for one in results) / count
        rows.append((name, f"{100 * sum(right) / count:.0f}", f"{nfe:.1f}", f"{columns:.0f}"))
        say(" ".join(rows[-1]), flush=True)
    say(table(("hole", "exact match %", "forwards", "columns"), rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
