"""The cells of a sweep: folders of results with their measures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from dllm.analysis.measures import Measures, by_task, score_over_tasks, scores_of, sum_over_batches
from dllm.record.folders import flatten
from dllm.record.stored import RefusedCell, StoredCell, refused_cells, stored_cells

Row = dict[str, Any]
SHARED_GROUPS = ("blocks", "cache", "eos", "constraint", "sampling")  # whose settings a cell shares with its reference
STAMPS = ("suite", "template", "data")


@dataclass(frozen=True)
class Cell(StoredCell):
    """The results of one configuration on one task, with their measures. Numbers of two suites are never mixed."""

    @property
    def model(self) -> str:
        """Its name, and its adapter's."""
        model = self.config["model"]
        return " + ".join([str(model["name"]), *([Path(model["adapter"]).name] if model.get("adapter") else [])])

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
        """95 % interval of ``quality``."""
        _, low, high = score_over_tasks(self.rows)
        return (0.0, 100.0) if low is None or high is None else (100 * low, 100 * high)

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
        flat = flatten({group: self.config.get(group) or {} for group in SHARED_GROUPS})
        return (self.model, self.suite, self.config["gen_length"], tuple(sorted(map(str, flat.items()))))

    def column(self, name: str) -> float | None:
        """The sum of an entry over the rows. None: not all rows have it."""
        values = [row[name] for row in self.rows if row.get(name) is not None]
        return float(sum(values)) if len(values) == len(self.rows) else None


def read(folder: Path) -> tuple[list[Cell], list[RefusedCell]]:
    """The cells in ``folder``, and the combinations that were refused.

    Raises UserError when there is no cell, and for a broken file.
    """
    cells = [Cell(one.folder, one.config, one.rows, one.environment) for one in stored_cells(folder)]
    return cells, refused_cells(folder)


def sections(cells: Sequence[Cell]) -> Iterator[tuple[tuple[str, ...], list[Cell]]]:
    """The cells of each suite, of all models."""
    for suite in sorted({cell.suite for cell in cells}):
        yield suite, [cell for cell in cells if cell.suite == suite]
