"""The cells of a sweep: folders of results with their measures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from dllm.analysis.measures import Measures, scores_of, sum_over_batches, wilson
from dllm.app.runs.folder import REFUSED_FILE, flatten, read_results
from dllm.errors import UserError
from dllm.view.scores import by_task

Row = dict[str, Any]
STAMPS = ("suite", "template", "data")


@dataclass(frozen=True)
class Cell:
    """The results of one configuration on one task. Numbers of two suites are never mixed."""

    folder: Path
    config: Mapping[str, Any]
    rows: list[Row]
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> str:
        return str(self.config["model"]["name"])

    @property
    def suite(self) -> tuple[str, ...]:
        """Task, suite, template hash and data hash."""
        return (str(self.config["task"]["name"]), *(str(self.rows[0].get(name, "")) for name in STAMPS))

    @cached_property
    def tasks(self) -> dict[str, list[Row]]:
        return by_task(self.rows)

    @cached_property
    def scores(self) -> dict[str, float]:
        """Mean score of each sub-task in percent, without those that could not be judged."""
        means = {task: scores_of(rows) for task, rows in self.tasks.items()}
        return {task: 100 * fmean(values) for task, values in means.items() if values}

    @cached_property
    def measures(self) -> Measures:
        return Measures.of(self.rows)

    @property
    def quality(self) -> float:
        """Mean over sub-tasks, in percent."""
        return fmean(self.scores.values()) if self.scores else float("nan")

    @cached_property
    def interval(self) -> tuple[float, float]:
        """95 % interval of ``quality``: Wilson's for each sub-task, their variances added (Zou and Donner 2008)."""
        below = above = 0.0
        for task, score in self.scores.items():
            values = scores_of(self.tasks[task])
            low, high = wilson(sum(values), len(values))
            below, above = below + (score - 100 * low) ** 2, above + (100 * high - score) ** 2
        count = max(1, len(self.scores))
        return max(0.0, self.quality - sqrt(below) / count), min(100.0, self.quality + sqrt(above) / count)

    @cached_property
    def tokens_per_step(self) -> float:
        """ParallelBench's measure: canvas positions over forwards of a sample, mean over sub-tasks. Padding counts."""
        return fmean(fmean(len(row["canvas"]) / max(1, row["nfe"]) for row in rows) for rows in self.tasks.values())

    @property
    def stretch(self) -> float | None:
        """Wall time over CPU time of the thread that decoded; None where older versions did not measure it."""
        spent = None if self.column("cpu_seconds") is None else sum_over_batches(self.rows, "cpu_seconds")
        return self.measures.seconds / spent if spent else None

    @property
    def load(self) -> float | None:
        """Running and waiting processes per core, mean over samples."""
        total = self.column("load")
        return None if total is None else total / len(self.rows)

    @property
    def layout(self) -> tuple[Any, ...]:
        """What two cells must share for one to be the other's reference: everything but the sampler."""
        flat = flatten({group: self.config[group] for group in ("blocks", "cache", "eos", "sampling")})
        return (self.model, self.suite, self.config["gen_length"], tuple(sorted(map(str, flat.items()))))

    def column(self, name: str) -> float | None:
        """The sum of an entry over the rows. None: not all rows have it."""
        values = [row[name] for row in self.rows if row.get(name) is not None]
        return float(sum(values)) if len(values) == len(self.rows) else None


def read(folder: Path) -> tuple[list[Cell], list[str]]:
    """The cells in ``folder``, and the error messages of the combinations that were refused.

    Raises UserError when there is no cell.
    """
    places = sorted({file.parent for file in folder.glob("**/results.jsonl")})
    cells = [cell for place in places if (cell := cell_of(place)) is not None]
    if not cells:
        raise UserError(
            f"{folder} holds no results of a task. Make some with: python run.py -m experiment=small name=NAME"
        )
    return cells, sorted({json.loads(file.read_text())["sentence"] for file in folder.glob(f"**/{REFUSED_FILE}")})


def cell_of(folder: Path) -> Cell | None:
    """None for a run of prompts, which has no scores, and for a cell without a finished sample."""
    found, _ = read_results(folder / "results.jsonl")
    if not found or "scores" not in found[0]:
        return None
    rows = sorted(found, key=lambda row: (row["task"], row["id"], row["sample"]))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    return Cell(folder, config, rows, json.loads((folder / "environment.json").read_text()))


def sections(cells: Sequence[Cell]) -> Iterator[tuple[tuple[str, ...], list[Cell]]]:
    """The cells of each suite, of all models."""
    for suite in sorted({cell.suite for cell in cells}):
        yield suite, [cell for cell in cells if cell.suite == suite]
