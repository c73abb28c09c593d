"""Losses and costs of settings from decodes: a cell for each setting and portion of the items, in the run's folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dllm.app.commands.evaluate import engine_of
from dllm.app.runs.cells import Cell, sweep_cell
from dllm.app.tuning.space import SettingWords
from dllm.common.errors import UserError
from dllm.common.terminal import complain, say
from dllm.record.measures import scores_of, sum_over_batches
from dllm.record.results import ResultRow
from dllm.scoring.promise import split_items

PORTION = "dllm.tasks.portion.Portion"
LOOK_EVERY = 16  # items between two looks at the clock
Configured = Callable[[SettingWords], dict[str, Any]]  # the resolved configuration of a setting


class OutOfTimeError(Exception):
    """The budget is used up."""


@dataclass
class DecodedLosses:
    """The table that ``dllm.scoring.promise.choose`` reads. Settings are places in ``settings``; the first is the
    reference. What fails is left out, with its reason in ``out``."""

    settings: Sequence[SettingWords]  # what is tried, the reference first
    configured: Configured  # composes a setting
    folder: Path  # where the cells are
    items: int  # that serve, of those that the task has
    seed: int  # of the order in which items serve
    cost: str  # what ``cost_of`` counts
    binary: bool  # agreement: a loss is 1 where texts differ
    deadline: float | None = None  # of ``time.monotonic``
    cut: bool = False  # the time was up before a setting was confirmed
    searched: tuple[int, ...] = ()  # settings that the last search asked for
    out: dict[int, str] = field(default_factory=dict)  # settings that failed, with the reason
    rows: dict[int, dict[str, ResultRow]] = field(default_factory=dict)  # by setting and item
    orders: dict[tuple[int, int], list[str]] = field(default_factory=dict)  # items of a portion

    @property
    def searching(self) -> int:
        return len(split_items(self.items, 0)[0])

    def search(self, settings: Sequence[int], count: int) -> Mapping[int, tuple[Sequence[float], float]]:
        self.searched = tuple(settings)
        before = max((end for start, end in self.orders if end <= self.searching), default=0)
        say(f"Search: items {before + 1} to {count} of {self.searching}, {len(settings)} settings.", flush=True)
        self.decode(settings, before, count)
        return {k: (self.losses(k, 0, count), self.cost_of(k)) for k in settings if k not in self.out}

    def confirm(self, setting: int) -> Sequence[float] | None:
        say(f"Confirm: {self.items - self.searching} items, {self.label(setting)}.", flush=True)
        try:
            self.decode([setting], self.searching, self.items)
        except OutOfTimeError:  # what is certified so far stands
            self.cut, self.out[setting] = True, "the time was up"
        return None if setting in self.out else self.losses(setting, self.searching, self.items)

    def decode(self, settings: Sequence[int], start: int, end: int) -> None:
        """Decode some of the items with the reference and these settings. Raises OutOfTimeError, and UserError where
        the reference cannot be decoded."""
        step = end - start if self.deadline is None else LOOK_EVERY
        for at in range(start, end, step) if start < end else ():
            self._decode([k for k in settings if k not in self.out], at, min(at + step, end))

    def _decode(self, settings: Sequence[int], start: int, end: int) -> None:
        numbers = dict.fromkeys([0, *settings])
        cells = {k: cell for k in numbers if (cell := self._cell(k, start, end)) is not None}
        together = engine_of(self.configured(self.settings[0])).together
        for group in [list(cells)] if together and self.deadline is None else [[k] for k in cells]:
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise OutOfTimeError
            if not self._ran([cells[k] for k in group], group):
                for k in group if len(group) > 1 else ():  # whose mistake it is
                    self._ran([cells[k]], [k])
        for k, cell in cells.items():
            rows = {str(row["id"]): row for row in cell.rows()}
            self.orders[start, end] = list(cell.evaluation.items)
            if k not in self.out and len(rows) < end - start:
                self._leave_out(k, "some of its samples could not be decoded")
            self.rows.setdefault(k, {}).update(rows)

    def _cell(self, setting: int, start: int, end: int) -> Cell | None:
        if setting in self.out:
            return None
        cell = sweep_cell(self.portion(setting, start, end), self.folder, self.settings[setting])
        if isinstance(cell, UserError):
            self._leave_out(setting, str(cell))
            return None
        return Cell(cell.evaluation, cell.folder, self.label(setting))

    def portion(self, setting: int, start: int, end: int) -> dict[str, Any]:
        """The configuration of some items under a setting."""
        config = self.configured(self.settings[setting])
        task = {name: config["task"][name] for name in ("name", "run")}
        parts = {"of": config["task"], "seed": self.seed, "start": start, "end": end}
        return {**config, "task": {**task, "_target_": PORTION, **parts}}

    def _ran(self, cells: Sequence[Cell], settings: Sequence[int]) -> bool:
        """Whether cells could be decoded. A single one that cannot be is left out."""
        try:
            self._run(cells)
            return True
        except (UserError, RuntimeError, MemoryError, ValueError, ArithmeticError) as error:
            if isinstance(error.__cause__, OSError):  # a disk that is full is no setting's fault
                raise
            if len(settings) == 1:
                self._leave_out(settings[0], str(error))
            return False

    def _run(self, cells: Sequence[Cell]) -> None:
        engine = engine_of(cells[0].evaluation.config)
        for _ in engine.run(iter(cells)):
            pass
        for cell, _, reason in engine.failures:
            raise UserError(f"{cell.place}: {reason}")

    def _leave_out(self, setting: int, why: str) -> None:
        if setting == 0:
            raise UserError(f"the reference, {self.label(0)}, cannot be decoded: {why}")
        complain(f"Left out: {self.label(setting)}: {why}")
        self.out[setting] = why

    def label(self, setting: int) -> str:
        return " ".join(self.settings[setting])

    def keys(self, start: int, end: int) -> list[str]:
        """Items in the order in which they serve."""
        portions = sorted(portion for portion in self.orders if start <= portion[0] and portion[1] <= end)
        return [key for portion in portions for key in self.orders[portion]]

    def losses(self, setting: int, start: int, end: int) -> list[float]:
        """Of a setting against the reference, in the order of the items. Without those that it has not decoded."""
        mine, base = self.rows[setting], self.rows[0]
        keys = [key for key in self.keys(start, end) if key in mine and key in base]
        if self.binary:
            return [float(mine[key]["text"] != base[key]["text"]) for key in keys]
        return [score_of(base[key]) - score_of(mine[key]) for key in keys]

    def cost_of(self, setting: int) -> float:
        """Per searching item."""
        mine = self.rows[setting]
        return cost_of([mine[key] for key in self.keys(0, self.searching)], self.cost)

    def costs_beside_reference(self, setting: int) -> tuple[float, float]:
        """Per item that the setting has decoded: its own cost, and the reference's."""
        mine, base = self.rows[setting], self.rows[0]
        keys = [key for key in self.keys(0, self.items) if key in mine]
        return cost_of([mine[key] for key in keys], self.cost), cost_of([base[key] for key in keys], self.cost)


def cost_of(rows: Sequence[ResultRow], cost: str) -> float:
    """Per item: seconds of CPU where a CPU decodes, of the clock elsewhere; forwards; computed query tokens."""
    if cost == "seconds":
        name = "cpu_seconds" if all(row["device"] == "cpu" for row in rows) else "seconds"
        return sum_over_batches(rows, name) / len(rows)
    return sum(row["nfe" if cost == "forwards" else cost] for row in rows) / len(rows)


def score_of(row: ResultRow) -> float:
    """Raises UserError for an answer whose score is no share."""
    scores = scores_of([row])
    if not scores:
        raise UserError(f"the answer to {row['id']} has no score of its own. Choose a task that scores each answer.")
    if not 0 <= scores[0] <= 1:
        raise UserError(f"the answer to {row['id']} has a score of {scores[0]:g}, and a loss needs one in [0, 1].")
    return scores[0]
