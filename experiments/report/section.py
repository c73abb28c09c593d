"""The part of a report on one suite: pictures of all models, then the tables of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dllm.common.atomic_write import write_whole
from dllm.record.cost import Machine
from experiments.report import look, plots, tables
from experiments.report.cells import Suite
from experiments.report.differences import paired
from experiments.report.machines import machines, warnings
from experiments.report.page import Heading, Note, Picture, Piece
from experiments.report.published import published
from experiments.report.settings import Setting
from experiments.report.table import Table

FORWARD, SECOND = "useful tokens per forward (log scale)", "useful tokens per second (log scale)"


@dataclass(frozen=True)
class Section:
    """shown: the settings that tables and pictures are of; every: those among which references are looked for; bases:
    what differences are against, where that was asked for. mark: ends the names of files, so that no two suites share
    one."""

    suite: Suite
    shown: Sequence[Setting]
    every: Sequence[Setting]
    bases: Sequence[Setting]
    rates: Machine | None
    out: Path
    mark: str

    def pieces(self) -> list[Piece]:
        """Write the files, and return what the page shows."""
        name, *stamps = self.suite
        cells = [cell for one in self.shown for cell in one.cells]
        found: list[Piece] = [
            Heading(f"{name}: suite {stamps[0] or 'without a name'}"),
            Note(f"Template {stamps[1] or '-'}, data {stamps[2] or '-'}. {machines(cells)}"),
            *map(Note, warnings(self.shown, self.rates)),
            *self.pictures(),
        ]
        for model in sorted({one.model for one in self.shown}):
            found += self.of_model(model)
        return found

    def of_model(self, model: str) -> list[Piece]:
        mine = [one for one in self.shown if one.model == model]
        every = [one for one in self.every if one.model == model]
        made: dict[str, tuple[str, Table | None]] = {
            "curves": ("Methods", tables.curves(mine)), "table": ("Settings", tables.outcomes(mine)),
            "times": ("Speed", tables.speeds(mine, self.rates)), "limits": ("Limits", tables.distances(mine, every)),
            "tasks": ("Sub-tasks", tables.tasks(mine)),
        }  # fmt: skip
        found: list[Piece] = []
        for kind, (head, table) in made.items():
            found += self.table(kind, model, head, table)
        theirs = self.table("published", model, "Published figures", published(mine))
        return [*found, *self.comparison(model, mine), *theirs]

    def table(self, kind: str, model: str, head: str, table: Table | None, notes: Sequence[str] = ()) -> list[Piece]:
        """A table on the page, and in files of its own; nothing for None."""
        if table is None:
            return []
        self.write(kind, model, table)
        return [Heading(f"{model}: {head}", 3), *map(Note, notes), table]

    def write(self, kind: str, model: str, table: Table) -> None:
        name = f"{kind}-{file_name(model)}{self.mark}"
        write_whole(self.out / f"{name}.csv", table.csv())
        write_whole(self.out / f"{name}.tex", table.latex())

    def comparison(self, model: str, mine: Sequence[Setting]) -> list[Piece]:
        """The differences of a model's settings from their baseline, on the same items."""
        base = next((one for one in self.bases if one.model == model), None)
        found = paired(mine, base)
        if found is None:
            return []
        self.write("differences_by_task", model, found.every_task)
        return [
            *self.table("differences", model, "Paired differences", found.whole, found.notes),
            Heading(f"{model}: Paired differences by sub-task", 3), found.tasks,
        ]  # fmt: skip

    def pictures(self) -> list[Piece]:
        """Those of the suite, or a note where no score could be judged."""
        scored = [one for one in self.shown if one.scores]
        if not scored:
            return [Note("No score could be judged, so there are no pictures.")]
        found: list[Piece] = [
            self.picture(scored, "quality-tpf", lambda one: one.measures.tpf, FORWARD),
            self.picture(scored, "quality-speed", lambda one: one.measures.speed, SECOND, timed=True),
        ]
        for model, figure in plots.curves_of_tasks(scored).items():
            file = self.out / f"tasks-{file_name(model)}{self.mark}.png"
            look.save(figure, file)
            found.append(Picture(file, f"Each sub-task's score as more tokens are decoded per forward, {model}."))
        return found

    def picture(self, scored: Sequence[Setting], name: str, x: plots.X, label: str, timed: bool = False) -> Picture:
        file = self.out / f"{name}{self.mark}.png"
        look.save(plots.tradeoff(scored, x, label, timed), file)
        more = "crossed: the machine was busy, so the speed is too low" if timed else "hollow: its lossless minimum"
        return Picture(file, f"Score against {label.removesuffix(' (log scale)')}; vertical lines: 95 % intervals; "
                       f"filled: nothing is better in both; star: one token per step; {more}.")  # fmt: skip


def file_name(model: str) -> str:
    """A model's name without signs that no file takes."""
    return re.sub(r"[^\w.+-]+", "-", model)
