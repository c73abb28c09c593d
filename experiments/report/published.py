"""Papers' figures beside ours: a table of the cells whose settings a paper reports."""

from __future__ import annotations

from collections.abc import Sequence

from dllm.record.published import Published, beside
from experiments.report.machines import place_of
from experiments.report.methods import each, methods
from experiments.report.settings import Setting
from experiments.report.table import Table

Value = float | None
HEADS = ["method", "setting", "whose", "comparable", "hardware", "from",
         "score", "tokens / s", "tokens / forward", "forwards", "speed-up"]  # fmt: skip
WORDS = 6  # columns of words, before the numbers


def published(settings: Sequence[Setting]) -> Table | None:
    """Two lines for each setting of a published experiment: ours, and theirs of the nearest settings. None: none is.

    speed-up: over one token per step, which a run does not measure. comparable: what differs, if anything does.
    """
    rows = []
    for _, one in each(methods(settings)):
        there = one.first.environment
        theirs = beside(one.config, there.get("width"), there.get("architecture"))
        if theirs is not None:
            found, name = one.measures, [one.method, one.name]
            ours: list[Value] = [one.quality, found.speed, found.tpf, found.nfe, None]
            rows.append([*name, "ours", "", place_of(there), one.folders, *numbers(ours)])
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
