"""A report of sweeps: one page, its tables as files of their own, its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dllm.common.atomic_write import write_whole
from dllm.record.cost import Machine, machine
from dllm.view.report import methods
from dllm.view.report import setting_tables as tables
from dllm.view.report.differences import differences_of
from dllm.view.report.older import Codes
from dllm.view.report.origin import machines, mixed_versions, origin, refusals, warnings
from dllm.view.report.page_pieces import Heading, Note, Piece, ReportTable, file_name, html, markdown
from dllm.view.report.pooling import SettingResults, Suite, read_cells
from dllm.view.report.setting_names import named_settings

LEGEND = (
    "score: mean over sub-tasks in percent; low, high: its 95 % interval, in which answers to one item count together; "
    "a score of all answers together, such as BLEU, has none, nor paired differences. "
    "seeds: cells that differ in seed or number of samples alone are one setting, and its numbers are of all of them. "
    "tokens / forward: tokens before the end of the text over forwards; positions / forward: canvas positions over "
    "forwards, ParallelBench's tokens per step, which count padding. AUP: accuracy under parallelism, mean over "
    "sub-tasks; its 95 % interval is the percentile bootstrap's over items, the same 400 draws for all methods. PBx: "
    "most positions per forward with a score of x or more, at a setting or interpolated between two. "
    "oracle / forwards: the share of the forwards that a perfect selection rule needs. lossless minimum: the fewest "
    "forwards that reproduce one token per step by drafting and verifying. forced: commits that the rule did not "
    "accept. budget used: of the bits that the rule lets a forward decide."
)


@dataclass(frozen=True)
class ReportOptions:
    machine: str | None = None  # whose floor times are compared with
    method_names: Sequence[str] = ()  # methods, in their order; empty: all
    base: str | None = None  # what differences are against; None: one token per step
    bright: str | None = None  # the method to draw before others


def write_report(folders: Sequence[Path], out: Path, choice: ReportOptions | None = None) -> Path:
    """Write everything to the folder ``out``, and return the page.

    Raises UserError when there are no results, when two settings cannot be told apart, and for a method that is not
    there.
    """
    choice = choice or ReportOptions()
    cells, rejects = read_cells(*folders)
    every = named_settings(cells)
    settings = methods.chosen_settings(every, choice.method_names, choice.bright)
    bases = methods.baselines(every, choice.base) if choice.base is not None else []
    rates: Machine | None = None if choice.machine is None else machine(choice.machine)
    out.mkdir(parents=True, exist_ok=True)
    notes = [*mixed_versions(cells), *Codes(cells).notes(), LEGEND]
    pieces: list[Piece] = [origin(cells), *map(Note, notes)]
    for number, suite in enumerate(sorted({setting.suite for setting in settings})):
        mine, whole, against = (
            [setting for setting in some if setting.suite == suite] for some in (settings, every, bases)
        )
        mark = "" if number == 0 else f"-{number + 1}"
        pieces += Section(suite, mine, whole, against, rates, out, mark).pieces()
    if rejects:
        pieces += [Heading(f"Refused: {len(rejects)} combinations that cannot work"), refusals(rejects, cells)]
    title = f"Speed against quality: {', '.join(folder.resolve().name for folder in folders)}"
    write_whole(out / "report.md", markdown(title, pieces))
    page = out / "report.html"
    write_whole(page, html(title, pieces))
    return page


@dataclass(frozen=True)
class Section:
    """The part of a report on one suite: pictures of all models, then the tables of each."""

    suite: Suite  # the benchmark, with hashes of its template and its data
    settings: Sequence[SettingResults]  # what tables and pictures are of
    every: Sequence[SettingResults]  # among which references are looked for
    bases: Sequence[SettingResults]  # what differences are against, where that was asked for
    rates: Machine | None  # whose floor times are compared with
    out: Path  # the report's folder
    mark: str  # ends the names of files, so that no two suites share one

    def pieces(self) -> list[Piece]:
        """Write the files, and return what the page shows."""
        name, *stamps = self.suite
        cells = [cell for setting in self.settings for cell in setting.cells]
        out: list[Piece] = [
            Heading(f"{name}: suite {stamps[0] or 'without a name'}"),
            Note(f"Template {stamps[1] or '-'}, data {stamps[2] or '-'}. {machines(cells)}"),
            *map(Note, warnings(self.settings, self.rates)),
            *self.pictures(),
        ]
        for model in sorted({setting.model for setting in self.settings}):
            out += self.of_model(model)
        return out

    def of_model(self, model: str) -> list[Piece]:
        mine = [setting for setting in self.settings if setting.model == model]
        every = [setting for setting in self.every if setting.model == model]
        entries: dict[str, tuple[str, ReportTable | None]] = {
            "curves": ("Methods", tables.curves(mine)),
            "aup": ("AUP with intervals", tables.areas(mine)),
            "table": ("Settings", tables.setting_table(mine, tables.OUTCOMES)),
            "times": ("Speed", tables.speeds(mine, self.rates)),
            "limits": ("Limits", tables.limit_distances(mine, every)),
            "tasks": ("Sub-tasks", tables.tasks(mine)),
        }
        out: list[Piece] = []
        for kind, (head, table) in entries.items():
            out += self.table(kind, model, head, table)
        theirs = self.table("published", model, "Published figures", tables.published_table(mine))
        return [*out, *self.comparison(model, mine), *theirs]

    def table(
        self, kind: str, model: str, head: str, table: ReportTable | None, notes: Sequence[str] = ()
    ) -> list[Piece]:
        """A table on the page, and in files of its own; nothing for None."""
        if table is None:
            return []
        self.write(kind, model, table)
        return [Heading(f"{model}: {head}", 3), *map(Note, notes), table]

    def write(self, kind: str, model: str, table: ReportTable) -> None:
        name = f"{kind}-{file_name(model)}{self.mark}"
        write_whole(self.out / f"{name}.csv", table.csv())
        write_whole(self.out / f"{name}.tex", table.latex())

    def comparison(self, model: str, mine: Sequence[SettingResults]) -> list[Piece]:
        """The differences of a model's settings from their baseline, on the same items."""
        base = next((setting for setting in self.bases if setting.model == model), None)
        differences = differences_of(mine, base)
        if differences is None:
            return []
        self.write("differences_by_task", model, differences.every_task)
        return [
            *self.table("differences", model, "Paired differences", differences.whole, differences.notes),
            Heading(f"{model}: Paired differences by sub-task", 3),
            differences.tasks,
        ]

    def pictures(self) -> list[Piece]:
        """Those of the suite, or a note where no score could be judged."""
        from dllm.view.report.plots import pictures_of  # the extra ``report``

        with_scores = [setting for setting in self.settings if setting.scores]
        if not with_scores:
            return [Note("No score could be judged, so there are no pictures.")]
        return list(pictures_of(with_scores, self.out, self.mark))
