"""Paired differences: every setting's score minus the baseline's, on the same items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from dllm.analysis.paired import PairedDifference, paired_difference
from experiments.report.cells import Cell, Row
from experiments.report.methods import Method, baseline, methods
from experiments.report.tables import Table, each, plain

METHOD = (
    "Score minus the baseline's on the same items, in points, mean over sub-tasks; of several answers to an item their "
    "mean. 95 %: Bonett and Price's interval for paired scores (2012), of each comparison by itself. worse, better: "
    "sub-tasks whose own interval lies wholly below or above 0. left out: items that one of the two lacks, that were "
    "asked in other words, or that could not be judged in both. By sub-task, * marks an interval without 0."
)


@dataclass(frozen=True)
class Compared:
    """A setting beside the baseline. groups: for each sub-task the difference of every item. left_out: how many items
    could not be paired."""

    groups: dict[str, list[float]]
    left_out: int

    @staticmethod
    def of(cell: Cell, base: Cell) -> Compared:
        mine, theirs = by_item(cell), by_item(base)
        groups: dict[str, list[float]] = {}
        for (task, item), here in mine.items():
            if values := differences(here, theirs.get((task, item), {})):
                groups.setdefault(task, []).append(fmean(values))
        return Compared(groups, len(mine.keys() | theirs.keys()) - sum(map(len, groups.values())))

    @property
    def whole(self) -> PairedDifference | None:
        """None where no item could be paired."""
        return paired_difference(list(self.groups.values())) if self.groups else None

    def of_task(self, task: str) -> PairedDifference | None:
        return paired_difference([self.groups[task]]) if task in self.groups else None


def by_item(cell: Cell) -> dict[tuple[str, str], dict[int, Row]]:
    """The samples of each item of each sub-task."""
    found: dict[tuple[str, str], dict[int, Row]] = {}
    for row in cell.rows:
        found.setdefault((row["task"], str(row["id"])), {})[row["sample"]] = row
    return found


def differences(mine: dict[int, Row], theirs: dict[int, Row]) -> list[float]:
    """Of each sample of an item that both have, asked in the same words and judged in both."""
    both = [(mine[number], theirs[number]) for number in mine.keys() & theirs.keys()]
    same = [(one, other) for one, other in both if one.get("prompt") == other.get("prompt")]
    scores = [(one["scores"].get("score"), other["scores"].get("score")) for one, other in same]
    return [one - other for one, other in scores if one is not None and other is not None]


def baseline_of(found: Sequence[Method]) -> tuple[Method, Cell]:
    """One token per step, or else the first setting that has a score."""
    scored = [(method, cell) for method, cell in each(found) if cell.scores]
    start = baseline([method.only(lambda cell: bool(cell.scores)) for method in found])
    return next(((method, cell) for method, cell in scored if cell is start), scored[0])


@dataclass(frozen=True)
class Differences:
    """Of a model's settings. notes: how they were compared. tasks: for the page; every_task: with intervals."""

    notes: list[str]
    whole: Table
    tasks: Table
    every_task: Table


def paired(cells: Sequence[Cell]) -> Differences | None:
    """None where there is nothing to compare: fewer than two settings, or no score."""
    found = methods(cells)
    if not any(cell.scores for cell in cells) or len(cells) < 2:
        return None
    method, base = baseline_of(found)
    others = [(one, cell, Compared.of(cell, base)) for one, cell in each(found) if cell is not base]
    notes = [f"Baseline: {method.name}, {method.setting(base)} ({base.folder.name}). {METHOD}"]
    unpaired = [f"{one.name}, {one.setting(cell)}" for one, cell, compared in others if not compared.groups]
    if unpaired:
        notes.append(f"Not compared, since they share no judged item with the baseline: {'; '.join(unpaired)}.")
    kept = [(one.name, one.setting(cell), compared) for one, cell, compared in others if compared.groups]
    names = list(dict.fromkeys(task for cell in cells for task in cell.scores))
    return Differences(notes, together(kept), by_task(kept, names), one_by_one(kept, names))


def together(kept: Sequence[tuple[str, str, Compared]]) -> Table:
    """A line for each setting."""
    rows = []
    for name, setting, compared in kept:
        whole, single = compared.whole, [compared.of_task(task) for task in compared.groups]
        worse = sum(one is not None and one.high < 0 for one in single)
        better = sum(one is not None and one.low > 0 for one in single)
        rows.append([
            name, setting, f"{whole.items if whole else 0}", f"{compared.left_out or ''}", points(whole),
            interval(whole), f"{worse or ''}", f"{better or ''}",
        ])  # fmt: skip
    heads = ["method", "setting", "items", "left out", "difference", "95 %", "worse", "better"]
    return Table(heads, rows).without_empty()


def by_task(kept: Sequence[tuple[str, str, Compared]], names: Sequence[str]) -> Table:
    """A column for each sub-task; an asterisk where its interval excludes 0."""
    rows = []
    for name, setting, compared in kept:
        found = [compared.of_task(task) for task in names]
        rows.append([name, setting, *(points(one) + mark(one) for one in found)])
    return Table(["method", "setting", *map(plain, names)], rows)


def one_by_one(kept: Sequence[tuple[str, str, Compared]], names: Sequence[str]) -> Table:
    """A line for each setting and sub-task, with its interval."""
    rows = [
        [name, setting, plain(task), f"{one.items}", points(one), signed(one.low), signed(one.high)]
        for name, setting, compared in kept for task in names if (one := compared.of_task(task)) is not None
    ]  # fmt: skip
    return Table(["method", "setting", "sub-task", "items", "difference", "low", "high"], rows, words=3)


def mark(found: PairedDifference | None) -> str:
    return "*" if found is not None and (found.high < 0 or found.low > 0) else ""


def points(found: PairedDifference | None) -> str:
    return "" if found is None else signed(found.mean)


def interval(found: PairedDifference | None) -> str:
    return "" if found is None else f"{signed(found.low)} to {signed(found.high)}"


def signed(share: float) -> str:
    """In points; nothing is no gain."""
    return f"{100 * share:+.1f}" if abs(share) >= 5e-4 else "0.0"
