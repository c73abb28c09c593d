"""The cells of sweeps as their folders hold them, and settings: those that differ in seed and samples alone, pooled.

A report has one point for each setting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pandas import DataFrame

from dllm.common.errors import UserError
from dllm.common.grouping import grouped
from dllm.record.folders import relevant
from dllm.record.frame import typed_setting
from dllm.record.measures import (
    Measures,
    are_shares,
    by_task,
    in_percent,
    score_over_tasks,
    scores_of,
    sum_over_batches,
)
from dllm.record.stored import RefusedCell, StoredCell, refused_cells, stored_cells

SampleRow = dict[str, Any]
Suite = tuple[str, ...]  # task, suite, template hash and data hash
STAMPS = ("suite", "template", "data")
POOLED_KEYS = ("seed", "samples")  # cells that differ in nothing else are one setting
CODE = "'s code"  # ends the keys of a cell's content that are hashes of parts' code


@dataclass(frozen=True)
class CellResults(StoredCell):
    """The results of one configuration on one task. Numbers of two suites are never mixed."""

    @property
    def suite(self) -> Suite:
        return (str(self.config["task"]["name"]), *(str(self.rows[0].get(name, "")) for name in STAMPS))

    @property
    def checkpoint(self) -> str:
        """What tells its weights from others: their fingerprint, or where that was not noted their place."""
        model = self.config["model"]
        place = " + ".join(str(model.get(key)) for key in ("name", "path", "adapter"))
        return str(self.content.get("checkpoint", place))

    @property
    def codes(self) -> dict[str, str]:
        """The hash of the code of each part, by its group."""
        return {key.removesuffix(CODE): value for key, value in self.content.items() if key.endswith(CODE)}

    @property
    def content(self) -> Mapping[str, str]:
        return self.environment.get("content") or {}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting that can change a sample, by the name that one types, but for those that are pooled."""
        entries = {key: value for key, value in relevant(self.config).items() if key not in POOLED_KEYS}
        return dict(typed_setting(self.config, key, value) for key, value in entries.items())

    def key(self, without: str | None = None) -> str:
        """What cells must share to be pooled. without: a group that may differ."""
        entries = {key: value for key, value in relevant(self.config).items() if key not in POOLED_KEYS}
        codes = self.codes
        if without is not None:
            entries = {key: value for key, value in entries.items() if not key.startswith(f"{without}.")}
            codes.pop(without, None)
        return json.dumps([self.suite, self.checkpoint, codes, entries], sort_keys=True, default=str)


def read_cells(*folders: Path) -> tuple[list[CellResults], list[RefusedCell]]:
    """The cells in the folders, each once though folders may overlap, and the combinations that were refused.

    Raises UserError for a folder without a cell, and for a broken file.
    """
    cells = {cell.folder.resolve(): CellResults(**vars(cell)) for folder in folders for cell in stored_cells(folder)}
    refusals = {cell.folder.resolve(): cell for folder in folders for cell in refused_cells(folder)}
    return list(cells.values()), list(refusals.values())


def rows_of(cells: Sequence[CellResults]) -> list[SampleRow]:
    """The rows of pooled cells, each sample of each seed once.

    ``run`` tells the samples of an item apart, by seed and number; ``batch`` the batches of the cells.
    """
    samples: dict[tuple[Any, ...], SampleRow] = {}
    for number, cell in enumerate(cells):
        for row in cell.rows:
            run = f"{cell.config['seed']}/{row['sample']}"
            samples.setdefault((row["task"], row["id"], run), {**row, "run": run, "batch": f"{number}/{row['batch']}"})
    return list(samples.values())


@dataclass(frozen=True)
class SettingResults:
    """Pooled cells with their measures, over all samples of all seeds."""

    cells: tuple[CellResults, ...]  # by seed
    rows: list[SampleRow] = field(repr=False)  # all samples, each once
    model: str = ""  # what its checkpoint is called
    method: str = ""  # what the curve that it is on is called
    name: str = ""  # what it is called on that curve
    rank: int = 0  # its method's place among methods, where an order was asked for
    is_highlighted: bool = False  # drawn before others, and bold

    @staticmethod
    def of(cells: Sequence[CellResults]) -> SettingResults:
        """Raises UserError where two of them are one cell twice."""
        by_seed = sorted(cells, key=lambda cell: (cell.config["seed"], -cell.config["samples"], str(cell.folder)))
        for first, other in pairwise(by_seed):
            if all(first.config[name] == other.config[name] for name in POOLED_KEYS):
                raise UserError(
                    f"{first.folder} and {other.folder} hold the same cell: no setting, seed, checkpoint or code "
                    "differs, so nothing can tell them apart. Give the report one of them."
                )
        return SettingResults(tuple(by_seed), rows_of(by_seed))

    @property
    def first(self) -> CellResults:
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
    def tasks(self) -> dict[str, list[SampleRow]]:
        return by_task(self.rows)

    @cached_property
    def scores(self) -> dict[str, float]:
        """Score of each sub-task in percent, without those that could not be judged. One that is not a mean over
        answers is the mean of the cells'."""
        values = {task: self._score(task, rows) for task, rows in self.tasks.items()}
        return {task: value for task, value in values.items() if value is not None}

    def _score(self, task: str, rows: Sequence[SampleRow]) -> float | None:
        totals = [cell.totals.get(task, {}) for cell in self.cells]
        if not any("score" in total for total in totals):
            return in_percent(scores_of(rows))
        each = [total.get("score") for total in totals]
        return None if None in each else 100 * fmean(score for score in each if score is not None)

    @cached_property
    def by_answer(self) -> bool:
        """Whether the score is a mean over answers, each of which has one in [0, 1]."""
        return are_shares(scores_of(self.rows)) and not any(
            "score" in mine for c in self.cells for mine in c.totals.values()
        )

    @cached_property
    def measures(self) -> Measures:
        return Measures.of(self.rows)

    @property
    def quality(self) -> float:
        """Mean over sub-tasks, in percent; NaN where nothing was judged."""
        return fmean(self.scores.values()) if self.scores else float("nan")

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of ``quality``; answers to one item go together. None: the score is not a mean over answers."""
        if not self.by_answer:
            return None
        _, low, high = score_over_tasks(self.rows)
        return (0.0, 100.0) if low is None or high is None else (100 * low, 100 * high)

    @property
    def seeds(self) -> list[int]:
        return sorted({cell.config["seed"] for cell in self.cells})

    @cached_property
    def frame(self) -> DataFrame:
        """A line for each sample, by item and run: its single values, the score and the canvas's width."""
        lines = [
            {
                **{key: value for key, value in row.items() if not isinstance(value, list | dict)},
                "score": row["scores"].get("score"),
                "prompt": row.get("prompt", ""),
                "width": len(row["canvas"]),
            }
            for row in self.rows
        ]
        return DataFrame(lines).astype({"id": str, "score": float})

    @cached_property
    def of_seeds(self) -> dict[int, SettingResults]:
        return {
            seed: replace(
                self,
                cells=tuple(cell for cell in self.cells if cell.config["seed"] == seed),
                rows=[row for row in self.rows if row["run"].startswith(f"{seed}/")],
            )
            for seed in self.seeds
        }

    @cached_property
    def spread(self) -> float | None:
        """Standard deviation of ``quality`` over seeds, in points; None for one seed."""
        return stdev(setting.quality for setting in self.of_seeds.values()) if len(self.seeds) > 1 else None

    @cached_property
    def seeds_change_nothing(self) -> bool:
        """Whether every seed decoded the same answers, so that their spread is no measure."""
        each = [
            {(row["task"], row["id"], row["sample"]): row.get("tokens") for row in setting.rows}
            for setting in self.of_seeds.values()
        ]
        return self.spread == 0 and None not in each[0].values() and all(tokens == each[0] for tokens in each)

    @cached_property
    def tokens_per_step(self) -> float:
        """ParallelBench's measure: canvas positions over forwards of a sample, mean over sub-tasks. Padding counts."""
        steps = self.frame["width"] / self.frame["nfe"].clip(lower=1)
        return float(steps.groupby(self.frame["task"]).mean().mean())

    @property
    def stretch(self) -> float | None:
        """Wall time over CPU time of the thread that decoded; None where older versions did not measure it."""
        cpu = None if self.column("cpu_seconds") is None else sum_over_batches(self.rows, "cpu_seconds")
        return self.measures.seconds / cpu if cpu else None

    def column(self, name: str) -> float | None:
        """The sum of an entry over the rows. None: not all rows have it."""
        values = self.frame.get(name)
        return float(values.sum()) if values is not None and values.notna().all() else None

    def mean(self, name: str) -> float | None:
        total = self.column(name)
        return None if total is None else total / len(self.rows)


def pooled_settings(cells: Sequence[CellResults]) -> list[SettingResults]:
    """The settings of the cells, without names. Raises UserError where one cell is there twice."""
    return [SettingResults.of(group) for group in grouped((cell.key(), cell) for cell in cells).values()]
