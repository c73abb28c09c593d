"""Papers' figures beside ours: a table of the cells whose settings a paper reports."""

from __future__ import annotations

from collections.abc import Sequence

from dllm.analysis.published import Published, beside
from experiments.report.cells import Cell
from experiments.report.machines import place_of
from experiments.report.methods import methods
from experiments.report.tables import Table, each

Value = float | None
HEADS = ["method", "setting", "whose", "comparable", "hardware", "from",
         "score", "tokens / s", "tokens / forward", "forwards", "speed-up"]  # fmt: skip
WORDS = 6  # columns of words, before the numbers


def published(cells: Sequence[Cell]) -> Table | None:
    """Two lines for each cell of a published experiment: ours, and theirs of the nearest settings. None: no such cell.

    speed-up: over one token per step, which a run does not measure. comparable: what differs, if anything does.
    """
    rows = []
    for method, cell in each(methods(cells)):
        theirs = beside(cell.config, cell.environment.get("width"), cell.environment.get("architecture"))
        if theirs is not None:
            found, name = cell.measures, [method.name, method.setting(cell)]
            ours: list[Value] = [cell.quality, found.speed, found.tpf, found.nfe, None]
            rows.append([*name, "ours", "", place_of(cell.environment), cell.folder.name, *numbers(ours)])
            told = [verdict(theirs), theirs.hardware, origin(theirs)]
            rows.append([*name, "published", *told, *numbers(figures(theirs))])
    return Table(HEADS, rows, WORDS).without_empty() if rows else None


def figures(found: Published) -> list[Value]:
    return [found.score, found.tokens_per_second, found.tpf, found.nfe, found.speedup]


def numbers(values: Sequence[Value]) -> list[str]:
    return ["" if value is None or value != value else f"{value:.4g}" for value in values]


def origin(found: Published) -> str:
    return f"{found.source}{f' ({found.note})' if found.note else ''}"


def verdict(found: Published) -> str:
    """Whether a cell may be compared with the figures."""
    if not found.has_figures:
        return "no figures are published"
    return f"no: {'; '.join(found.unlike)}" if found.unlike else "yes: the same settings"
