"""Make tables, pictures and one page from the folders of sweeps: ``python -m experiments.report FOLDER ...``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dllm.common.terminal import complain, say
from dllm.errors import UserError
from dllm.record.cost import Machine, machine
from experiments.report import tables
from experiments.report.cells import Cell, read, sections
from experiments.report.differences import paired
from experiments.report.machines import machines, warnings
from experiments.report.origin import mixed_versions, origin, refusals
from experiments.report.page import Heading, Note, Picture, Piece, html, markdown
from experiments.report.published import published
from experiments.scripts import refusing

try:
    from experiments.report import plots
except UserError as error:
    complain("error:", error)
    raise SystemExit(2) from None

FORWARD, SECOND = "useful tokens per forward (log scale)", "useful tokens per second (log scale)"
LEGEND = (
    "score: mean over sub-tasks in percent, with its 95 % interval. tokens / forward: tokens before the end of the "
    "text over forwards; positions / forward: canvas positions over forwards, ParallelBench's tokens per step, which "
    "count padding. AUP: accuracy under parallelism, mean over sub-tasks. PBx: most positions per forward with a score "
    "of x or more, at a setting or interpolated between two. oracle / forwards: the share of the forwards that a "
    "perfect selection rule needs. lossless minimum: the fewest forwards that reproduce one token per step by "
    "drafting and verifying. forced: commits that the rule did not accept. budget used: of the bits that the rule lets "
    "a forward decide."
)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of sweeps or runs of a task")
    parser.add_argument("--out", type=Path, help="where to write (default: FOLDER/report)")
    parser.add_argument("--machine", help="compare times with this one's floor: h200, h100, a100, l4, or this")
    options = parser.parse_args(arguments)
    say(report(options.folders, options.out or options.folders[0] / "report", options.machine))
    return 0


def report(folders: Sequence[Path], out: Path, machine_name: str | None = None) -> Path:
    """Write everything to the folder ``out``, and return the page. machine_name: whose floor times are compared with.

    Raises UserError when there are no results.
    """
    found = [read(folder) for folder in folders]
    cells, refused = [cell for one, _ in found for cell in one], [one for _, many in found for one in many]
    out.mkdir(parents=True, exist_ok=True)
    rates = None if machine_name is None else machine(machine_name)
    pieces: list[Piece] = [origin(cells), *map(Note, mixed_versions(cells)), Note(LEGEND)]
    for number, (suite, mine) in enumerate(sections(cells)):
        pieces += section(suite, mine, out, "" if number == 0 else f"-{number + 1}", rates)
    if refused:
        pieces += [Heading(f"Refused: {len(refused)} combinations that cannot work"), refusals(refused, cells)]
    title = f"Speed against quality: {', '.join(folder.resolve().name for folder in folders)}"
    (out / "report.md").write_text(markdown(title, pieces))
    page = out / "report.html"
    page.write_text(html(title, pieces))
    return page


def section(
    suite: tuple[str, ...], cells: Sequence[Cell], out: Path, mark: str, rates: Machine | None
) -> list[Piece]:
    """The pieces of one suite. mark: ends the names of its files, so that no two suites share one."""
    name, *stamps = suite
    pieces: list[Piece] = [
        Heading(f"{name}: suite {stamps[0] or 'without a name'}"),
        Note(f"Template {stamps[1] or '-'}, data {stamps[2] or '-'}. {machines(cells)}"),
        *map(Note, warnings(cells, rates)),
        *pictures([cell for cell in cells if cell.scores], out, mark),
    ]
    for model in dict.fromkeys(cell.model for cell in cells):
        mine = [cell for cell in cells if cell.model == model]
        made = {
            "curves": ("Methods", tables.curves(mine)), "table": ("Settings", tables.outcomes(mine)),
            "times": ("Speed", tables.speeds(mine, rates)), "limits": ("Limits", tables.distances(mine)),
            "tasks": ("Sub-tasks", tables.tasks(mine)),
        }  # fmt: skip
        for kind, (head, table) in made.items():
            pieces += [Heading(f"{model}: {head}", 3), table]
            (out / f"{kind}-{model}{mark}.csv").write_text(table.csv())
        pieces += comparison(model, mine, out, mark)
        if (theirs := published(mine)) is not None:
            pieces += [Heading(f"{model}: Published figures", 3), theirs]
            (out / f"published-{model}{mark}.csv").write_text(theirs.csv())
    return pieces


def comparison(model: str, cells: Sequence[Cell], out: Path, mark: str) -> list[Piece]:
    """The differences of a model's settings from their baseline, on the same items."""
    found = paired(cells)
    if found is None:
        return []
    (out / f"differences-{model}{mark}.csv").write_text(found.whole.csv())
    (out / f"differences_by_task-{model}{mark}.csv").write_text(found.every_task.csv())
    heads = [Heading(f"{model}: {head}", 3) for head in ("Paired differences", "Paired differences by sub-task")]
    return [heads[0], *map(Note, found.notes), found.whole, heads[1], found.tasks]


def pictures(cells: Sequence[Cell], out: Path, mark: str) -> list[Piece]:
    """The pictures of a suite, or a note where no score could be judged."""
    if not cells:
        return [Note("No score could be judged, so there are no pictures.")]
    pieces: list[Piece] = [
        picture(cells, out / f"quality-tpf{mark}.png", lambda cell: cell.measures.tpf, FORWARD),
        picture(cells, out / f"quality-speed{mark}.png", lambda cell: cell.measures.speed, SECOND, timed=True),
    ]
    for model, figure in plots.curves_of_tasks(cells).items():
        file = out / f"tasks-{model}{mark}.png"
        plots.save(figure, file)
        pieces.append(Picture(file, f"Each sub-task's score as more tokens are decoded per forward, {model}."))
    return pieces


def picture(cells: Sequence[Cell], file: Path, x: plots.X, label: str, timed: bool = False) -> Picture:
    plots.save(plots.tradeoff(cells, x, label, timed), file)
    caption = f"Score against {label.removesuffix(' (log scale)')}; vertical lines: 95 % intervals; filled: nothing is "
    more = "crossed: the machine was busy, so the speed is too low" if timed else "hollow: its lossless minimum"
    return Picture(file, f"{caption}better in both; star: one token per step; {more}.")


if __name__ == "__main__":
    sys.exit(main())
