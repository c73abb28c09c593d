"""Make tables, pictures and one page from the folders of sweeps: ``python -m experiments.report FOLDER ...``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dllm.common.atomic_write import write_whole
from dllm.common.terminal import complain, say
from dllm.errors import UserError
from dllm.record.cost import Machine, machine
from experiments.report import methods
from experiments.report.arguments import parser
from experiments.report.cells import read
from experiments.report.labels import settings
from experiments.report.older import Codes
from experiments.report.origin import mixed_versions, origin, refusals
from experiments.report.page import Heading, Note, Piece, html, markdown
from experiments.support.scripts import refusing

try:
    from experiments.report.section import Section
except UserError as error:
    complain("error:", error)
    raise SystemExit(2) from None

LEGEND = (
    "score: mean over sub-tasks in percent; low, high: its 95 % interval, in which answers to one item count together. "
    "seeds: cells that differ in seed or number of samples alone are one setting, and its numbers are of all of them. "
    "tokens / forward: tokens before the end of the text over forwards; positions / forward: canvas positions over "
    "forwards, ParallelBench's tokens per step, which count padding. AUP: accuracy under parallelism, mean over "
    "sub-tasks. PBx: most positions per forward with a score of x or more, at a setting or interpolated between two. "
    "oracle / forwards: the share of the forwards that a perfect selection rule needs. lossless minimum: the fewest "
    "forwards that reproduce one token per step by drafting and verifying. forced: commits that the rule did not "
    "accept. budget used: of the bits that the rule lets a forward decide."
)
MADE = "tables (CSV, LaTeX) and pictures (PNG, PDF, SVG)"


@dataclass(frozen=True)
class Choice:
    """What a report shows. machine: whose floor times are compared with. wanted: methods, in their order; empty: all.
    base: what differences are against; None: one token per step. bright: the method to draw before others."""

    machine: str | None = None
    wanted: Sequence[str] = ()
    base: str | None = None
    bright: str | None = None


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    choice = Choice(given.machine, given.methods, given.baseline, given.highlight)
    page = report(given.folders, given.out or given.folders[0] / "report", choice)
    say(f"Report: {page}\nBeside it: {MADE}")
    return 0


def report(folders: Sequence[Path], out: Path, choice: Choice | None = None) -> Path:
    """Write everything to the folder ``out``, and return the page.

    Raises UserError when there are no results, when two settings cannot be told apart, and for a method that is not
    there.
    """
    choice = choice or Choice()
    cells, refused = read(*folders)
    every = settings(cells)
    shown = methods.chosen(every, choice.wanted, choice.bright)
    bases = methods.baselines(every, choice.base) if choice.base is not None else []
    rates: Machine | None = None if choice.machine is None else machine(choice.machine)
    out.mkdir(parents=True, exist_ok=True)
    notes = [*mixed_versions(cells), *Codes(cells).notes(), LEGEND]
    pieces: list[Piece] = [origin(cells), *map(Note, notes)]
    for number, suite in enumerate(sorted({one.suite for one in shown})):
        mine, whole, against = ([one for one in some if one.suite == suite] for some in (shown, every, bases))
        mark = "" if number == 0 else f"-{number + 1}"
        pieces += Section(suite, mine, whole, against, rates, out, mark).pieces()
    if refused:
        pieces += [Heading(f"Refused: {len(refused)} combinations that cannot work"), refusals(refused, cells)]
    title = f"Speed against quality: {', '.join(folder.resolve().name for folder in folders)}"
    write_whole(out / "report.md", markdown(title, pieces))
    page = out / "report.html"
    write_whole(page, html(title, pieces))
    return page


if __name__ == "__main__":
    sys.exit(main())
