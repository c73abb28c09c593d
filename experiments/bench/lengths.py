"""Score, forwards and columns of answers of fixed and changing lengths: ``python -m experiments.bench.lengths``.

Tasks of the mini benchmark whose answers have 3 to 31 tokens, decoded by ``sampler=confidence``. Columns are query
tokens of all forwards of an answer, prompt included.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dllm import Decoder, load, part
from dllm.common.terminal import say
from dllm.models.bundle import Model
from dllm.tasks.base import Item, Task
from dllm.tasks.build import task_of
from experiments.support.markdown import table
from experiments.support.scripts import refusing

FIXED, NEAR = (8, 16, 32, 64), 3.0  # points that auto may be below the best of them
SHORT = ("copy", "reverse", "sort", "shuffle", "insert_index", "insert_random", "remove_index", "remove_random",
         "replace_index", "replace_random", "latin_square", "sudoku", "words_to_sentence")  # fmt: skip
AUTO = "auto"


@dataclass(frozen=True)
class Cell:
    """What a setting gets of a task."""

    score: float  # per cent
    forwards: float  # of an answer
    columns: float  # query tokens of an answer
    useful: float  # per cent of the final columns that are text

    def __str__(self) -> str:
        return f"{self.score:.0f}, {self.forwards:.1f}, {self.columns:.0f}"


def settings(rules: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is decoded with, by name. rules: other rules for the length, at 16 masks, with up to 64."""
    for length in FIXED:
        yield str(length), {"gen_length": length}
    yield AUTO, {"gen_length": AUTO}
    for rule in rules:
        yield rule, {"gen_length": 16, "eos": "none", "length": part("length", rule, limit=64, checked=4)}


def by_task(items: Sequence[Item]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.task.rpartition("/")[2], []).append(item)
    return found


def measured(task: Task, items: Sequence[Item], decoder: Decoder) -> Cell:
    """The mean of the answers to ``items``."""
    results, count = decoder([item.prompt for item in items]), len(items)
    scores = [task.score(item, result.text)["score"] or 0.0 for item, result in zip(items, results, strict=True)]
    useful = sum(result.useful_tokens for result in results) / sum(len(result.canvas) for result in results)
    forwards, columns = sum(one.nfe for one in results), sum(one.query_tokens for one in results)
    return Cell(100 * sum(scores) / count, forwards / count, columns / count, 100 * useful)


def verdict(found: Mapping[str, Mapping[str, Cell]]) -> str:
    """In how many tasks auto is near the best fixed length, and computes fewer columns than the longest."""
    best = {task: max(cells[str(length)].score for length in FIXED) for task, cells in found.items()}
    near = [task for task, cells in found.items() if cells[AUTO].score >= best[task] - NEAR]
    fewer = [task for task, cells in found.items() if cells[AUTO].columns < cells[str(FIXED[-1])].columns]
    return (
        f"auto: within {NEAR:g} points of the best fixed length in {len(near)} of {len(found)} tasks, "
        f"fewer columns than gen_length={FIXED[-1]} in {len(fewer)}"
    )


def compared(model: Model, count: int, tasks: Sequence[str], rules: Sequence[str]) -> dict[str, dict[str, Cell]]:
    """Every setting on every task."""
    task = task_of(
        {
            "name": "parallelbench",
            "_target_": "dllm.tasks.parallelbench.suite.ParallelBench",
            "suite": "mini",
            "tasks": list(tasks),
            "count": count,
        }
    )
    groups, found = by_task(task.items()), dict[str, dict[str, Cell]]()
    for name, setting in settings(rules):
        decoder = Decoder(model, batch_size=50, chat=None, **setting)
        for asked, items in groups.items():
            cell = found.setdefault(asked, {})[name] = measured(task, items, decoder)
            say(f"{name} {asked}: {cell}, useful {cell.useful:.0f} %", flush=True)
    return found


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mini-llada")
    parser.add_argument("--count", type=int, default=100, help="items of each task")
    parser.add_argument("--tasks", nargs="+", default=SHORT)
    parser.add_argument("--rules", nargs="*", default=(), help="other rules for the length, such as daedal")
    options = parser.parse_args(arguments)
    found = compared(load(options.model), options.count, options.tasks, options.rules)
    names = list(next(iter(found.values())))
    say(table(("task", *names), [(task, *(str(cells[name]) for name in names)) for task, cells in found.items()], 4))
    say(verdict(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
