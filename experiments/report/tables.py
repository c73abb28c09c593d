"""The report's tables, written as Markdown, HTML and CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO

from dllm.record.cost import Machine
from experiments import markdown
from experiments.report import figures
from experiments.report.cells import Cell
from experiments.report.methods import Method, methods

LONG = 60  # characters of a text that is wrapped
LEVELS = (90, 80, 70, 60)


@dataclass(frozen=True)
class Table:
    """Cells of text. words: how many columns, from the left, hold words. The others hold numbers."""

    heads: Sequence[str]
    rows: list[list[str]]
    words: int = 2

    def markdown(self) -> str:
        return markdown.table(self.heads, self.rows, self.words) + "\n"

    def html(self) -> str:
        def line(cells: Sequence[str], tag: str) -> str:
            kinds = ["n" if at >= self.words else "w" if len(cell) > LONG else "" for at, cell in enumerate(cells)]
            shown = [
                f"<{tag}{f' class={kind}' if kind else ''}>{escape(cell)}</{tag}>"
                for kind, cell in zip(kinds, cells, strict=True)
            ]
            return f"<tr>{''.join(shown)}</tr>"

        body = "\n".join(line(row, "td") for row in self.rows)
        return f"<table><thead>{line(self.heads, 'th')}</thead><tbody>\n{body}\n</tbody></table>"

    def csv(self) -> str:
        out = StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.heads, *self.rows])
        return out.getvalue()

    def without_empty(self) -> Table:
        """The table without columns of numbers that are empty in every row."""
        kept = [at for at in range(len(self.heads)) if at < self.words or any(row[at] for row in self.rows)]
        return Table([self.heads[at] for at in kept], [[row[at] for at in kept] for row in self.rows], self.words)


def text(value: float | None, digits: int = 1) -> str:
    return "" if value is None or value != value else f"{value:.{digits}f}"


def each(found: Sequence[Method]) -> list[tuple[Method, Cell]]:
    return [(method, cell) for method in found for cell in method.cells]


def outcomes(cells: Sequence[Cell]) -> Table:
    """Quality and counts, which are the same on every machine and after every resumption."""
    heads = ["method", "setting", "samples", "score", "95 %", "missing scores", "tokens / forward",
             "positions / forward", "forwards", "query tokens", "GFLOP", "MB moved"]  # fmt: skip
    rows = []
    for method, cell in each(methods(cells)):
        found, low, high = cell.measures, *cell.interval
        count, missing = found.samples, sorted(set(cell.tasks) - set(cell.scores))
        flops, moved = cell.column("flops"), cell.column("bytes")
        rows.append([
            method.name, method.setting(cell), f"{count}", text(cell.quality), f"{low:.0f}-{high:.0f}",
            ", ".join(missing), text(found.tpf, 2), text(cell.tokens_per_step, 2), text(found.nfe),
            text(found.query_tokens / count, 0), text(flops and flops / count / 1e9, 2),
            text(moved and moved / count / 1e6, 0),
        ])  # fmt: skip
    return Table(heads, rows).without_empty()


def speeds(cells: Sequence[Cell], machine: Machine | None) -> Table:
    """Times on the machine where they were taken.

    floor: the least seconds that arithmetic and memory of ``machine`` need. computed / query tokens: rows that ran over
    rows that were asked for. wall / CPU: 1 where the thread that decoded had a core to itself. load: running and
    waiting processes per core. doubt: see ``Measures``.
    """
    heads = ["method", "setting", "tokens / s", "p50 s", "p95 s", "forwards / s", "floor s", "floor / time",
             "computed / query tokens", "idle forwards", "wall / CPU", "load", "doubt"]  # fmt: skip
    rows = []
    for method, cell in each(methods(cells)):
        found, floor = cell.measures, floor_of(cell, machine)
        rows.append([
            method.name, method.setting(cell), text(found.speed), text(found.p50, 3), text(found.p95, 3),
            text(found.forwards / found.seconds if found.seconds else None), text(floor, 4),
            text(floor * found.samples / found.seconds if floor and found.seconds else None, 3),
            text(found.computed / found.query_tokens if found.computed else None, 2),
            text(found.idle / found.samples if found.idle else None),
            text(cell.stretch, 2), text(cell.load, 2), found.doubt,
        ])  # fmt: skip
    return Table(heads, rows).without_empty()


def floor_of(cell: Cell, machine: Machine | None) -> float | None:
    """The least seconds of a sample that is decoded alone."""
    if machine is None or cell.column("flops") is None:
        return None
    return sum(max(r["flops"] / machine.flops, r["bytes"] / machine.bytes) for r in cell.rows) / len(cell.rows)


def distances(cells: Sequence[Cell]) -> Table:
    """The distance of each setting to its limits."""
    heads = ["method", "setting", "oracle / forwards", "lossless minimum / forwards", "as one per step %",
             "bits / forward", "forced %", "budget used %"]  # fmt: skip
    rows = []
    for method, cell in each(methods(cells)):
        found = figures.limits(cell, cells)
        rows.append([
            method.name, method.setting(cell), text(found["closeness"], 2), text(found["lossless"], 2),
            text(found["same"], 0), text(found["bits"], 2), text(found["forced"], 0), text(found["budget"], 0),
        ])  # fmt: skip
    return Table(heads, rows).without_empty()


def curves(cells: Sequence[Cell]) -> Table:
    """A line for each method: the numbers that sum up its curve."""
    levels = [f"PB{level}{kind}" for level in LEVELS for kind in ("", " interp.")]
    heads = ["method", "settings", "AUP", *levels, "best score", "incomplete"]
    found = methods([cell for cell in cells if cell.scores])
    expected = {task for cell in cells for task in cell.scores}
    rows = []
    for method in sorted(found, key=lambda one: -figures.mean_aup(one, found)):
        steps = figures.steps_of(method)
        pbx = [f(steps, level) for level in LEVELS for f in (figures.pb_discrete, figures.pb_interpolated)]
        partial = sum(set(cell.scores) != expected for cell in method.cells)
        rows.append([
            method.name, f"{len(method.cells)}", text(figures.mean_aup(method, found)),
            *(text(value) or "-" for value in pbx), text(max(score for _, score in steps)),
            f"{partial}" if partial else "",
        ])  # fmt: skip
    return Table(heads, rows, words=1).without_empty()


def tasks(cells: Sequence[Cell]) -> Table:
    """The score of each sub-task at each setting."""
    names = list(dict.fromkeys(task for cell in cells for task in cell.tasks))
    rows = [
        [method.name, method.setting(cell), text(cell.measures.tpf, 2), *(text(cell.scores.get(n), 0) for n in names)]
        for method, cell in each(methods(cells))
    ]
    return Table(["method", "setting", "tokens / forward", *(plain(name) for name in names)], rows)


def plain(task: str) -> str:
    """``waiting_line/copy`` as ``copy``."""
    return task.rpartition("/")[2].replace("_", " ")
