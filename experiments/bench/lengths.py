"""Score, forwards and columns of answers of fixed and changing lengths: ``python -m experiments.bench.lengths``.

Tasks of the mini benchmark, whose answers have 3 to 30 tokens, decoded by ``sampler=confidence``. Columns are query
tokens of all forwards of an answer, prompt included.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from dllm import Decoder, load, part
from dllm.common.terminal import say
from dllm.tasks.base import Item
from dllm.tasks.build import task_of
from experiments.support.markdown import table
from experiments.support.scripts import refusing

FIXED = (8, 16, 32, 64)
CHANGING: dict[str, dict[str, Any]] = {
    "gen_length=auto": {"gen_length": "auto"},
    "length=daedal": {"gen_length": 16, "eos": "none", "length": part("length", "daedal", limit=64, checked=4)},
}  # fmt: skip


def settings() -> Iterator[tuple[str, dict[str, Any]]]:
    """What is decoded with, by the name of its line."""
    for length in FIXED:
        yield f"gen_length={length}", {"gen_length": length}
    yield from CHANGING.items()


def by_task(items: Sequence[Item]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.task, []).append(item)
    return found


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mini-llada")
    parser.add_argument("--count", type=int, default=10, help="items of each task")
    parser.add_argument("--tasks", nargs="+", default=["copy", "sort", "shuffle"])
    options = parser.parse_args(arguments)
    task = task_of({
        "name": "parallelbench", "_target_": "dllm.tasks.parallelbench.suite.ParallelBench", "suite": "mini",
        "tasks": options.tasks, "count": options.count,
    })  # fmt: skip
    groups, model, rows = by_task(task.items()), load(options.model), list[tuple[str, ...]]()
    for name, setting in settings():
        decoder = Decoder(model, batch_size=4, chat=None, **setting)
        for asked, items in groups.items():
            results = decoder([item.prompt for item in items])
            scores = [task.score(item, result.text)["score"] for item, result in zip(items, results, strict=True)]
            right = sum(score or 0.0 for score in scores) / len(items)
            forwards = sum(result.nfe for result in results) / len(items)
            columns = sum(result.query_tokens for result in results) / len(items)
            useful = sum(result.useful_tokens for result in results) / sum(len(result.canvas) for result in results)
            rows.append((name, asked, f"{100 * right:.0f}", f"{forwards:.1f}", f"{columns:.0f}", f"{100 * useful:.0f}"))
            say(" ".join(rows[-1]))
    say(table(("setting", "task", "score %", "forwards", "columns", "useful %"), rows, 6))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
