"""Settings: what a report has a point for. Cells that differ in seed and samples alone are pooled into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

from dllm.errors import UserError
from dllm.record.measures import Measures, by_task, score_over_tasks, scores_of, sum_over_batches
from experiments.report.cells import Cell, Row, Suite, rows_of


@dataclass(frozen=True)
class Setting:
    """Pooled cells with their measures, over all samples of all seeds.

    model, method, name: what it is called: of the checkpoint, of the curve that it lies on, and of itself on that
    curve. rank: its place among methods; highlighted: drawn before others.
    """

    cells: tuple[Cell, ...]
    rows: list[Row] = field(repr=False)
    model: str = ""
    method: str = ""
    name: str = ""
    rank: int = 0
    highlighted: bool = False

    @staticmethod
    def of(cells: Sequence[Cell]) -> Setting:
        """Raises UserError where two of them are one cell twice."""
        ordered = sorted(cells, key=lambda cell: (cell.config["seed"], -cell.config["samples"], str(cell.folder)))
        for one, other in zip(ordered, ordered[1:], strict=False):
            if all(one.config[name] == other.config[name] for name in ("seed", "samples")):
                raise UserError(
                    f"{one.folder} and {other.folder} hold the same cell: no setting, seed, checkpoint or code "
                    "differs, so nothing can tell them apart. Give the report one of them."
                )
        return Setting(tuple(ordered), list(rows_of(ordered)))

    @property
    def first(self) -> Cell:
        """Whose configuration stands for all."""
        return self.cells[0]

    @property
    def config(self) -> Any:
        return self.first.config

    @property
    def suite(self) -> Suite:
        return self.first.suite

    @property
    def folders(self) -> str:
        return ", ".join(cell.folder.name for cell in self.cells)

    @property
    def is_reference(self) -> bool:
        """Whether this is the oracle, which knows the answer and is nothing to choose."""
        return "lossless" in self.rows[0]

    @property
    def layout(self) -> str:
        """What two settings must share for one to be the other's reference: everything but the sampler."""
        return self.first.key(without="sampler")

    @cached_property
    def tasks(self) -> dict[str, list[Row]]:
        return by_task(self.rows)

    @cached_property
    def scores(self) -> dict[str, float]:
        """Mean score of each sub-task in percent, without those that could not be judged."""
        return scores_in(self.rows)

    @cached_property
    def measures(self) -> Measures:
        return Measures.of(self.rows)

    @property
    def quality(self) -> float:
        """Mean over sub-tasks, in percent."""
        return quality_of(self.rows)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """95 % interval of ``quality``; answers to one item go together."""
        _, low, high = score_over_tasks(self.rows)
        return (0.0, 100.0) if low is None or high is None else (100 * low, 100 * high)

    @property
    def seeds(self) -> list[int]:
        return sorted({cell.config["seed"] for cell in self.cells})

    @cached_property
    def spread(self) -> float | None:
        """Standard deviation of ``quality`` over seeds, in points; None for one seed."""
        found = [quality_of([row for row in self.rows if row["run"].startswith(f"{seed}/")]) for seed in self.seeds]
        return stdev(found) if len(found) > 1 else None

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

    def column(self, name: str) -> float | None:
        """The sum of an entry over the rows. None: not all rows have it."""
        values = [row[name] for row in self.rows if row.get(name) is not None]
        return float(sum(values)) if len(values) == len(self.rows) else None


def scores_in(rows: Sequence[Row]) -> dict[str, float]:
    """Mean score of each sub-task in percent, without those that could not be judged."""
    means = {task: scores_of(mine) for task, mine in by_task(rows).items()}
    return {task: 100 * fmean(values) for task, values in means.items() if values}


def quality_of(rows: Sequence[Row]) -> float:
    """Mean over sub-tasks, in percent; NaN where nothing was judged."""
    found = scores_in(rows)
    return fmean(found.values()) if found else float("nan")


def pooled(cells: Sequence[Cell]) -> list[Setting]:
    """The settings of the cells, without names. Raises UserError where one cell is there twice."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.key(), []).append(cell)
    return [Setting.of(group) for group in groups.values()]
