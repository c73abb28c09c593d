"""The report's tables of settings and methods."""

from __future__ import annotations

from collections.abc import Sequence

from dllm.record.cost import Machine
from experiments.report import figures
from experiments.report.methods import Method, each, methods
from experiments.report.settings import Setting
from experiments.report.table import Table, plain, text

LEVELS = (90, 80, 70, 60)
NAMES = ["method", "setting"]


def named(heads: Sequence[str], found: Sequence[Method], rows: list[list[str]]) -> Table:
    """A table with a line for each setting, which its name opens."""
    settings = [one for _, one in each(found)]
    full = [[one.method, one.name, *row] for one, row in zip(settings, rows, strict=True)]
    bright = frozenset(number for number, one in enumerate(settings) if one.highlighted)
    return Table([*NAMES, *heads], full, bright=bright).without_empty()


def outcomes(settings: Sequence[Setting]) -> Table:
    """Quality and counts, which are the same on every machine and after every resumption.

    low, high: the 95 % interval of the score, of all seeds together. SD over seeds: in points.
    """
    heads = ["seeds", "samples", "score", "low", "high", "SD over seeds", "missing scores", "tokens / forward",
             "positions / forward", "forwards", "query tokens", "GFLOP", "MB moved"]  # fmt: skip
    ordered, rows = methods(settings), []
    for _, one in each(ordered):
        found, low, high = one.measures, *one.interval
        count, missing = found.samples, sorted(set(one.tasks) - set(one.scores))
        flops, moved = one.column("flops"), one.column("bytes")
        rows.append([
            f"{len(one.seeds)}" if len(one.seeds) > 1 else "", f"{count}", text(one.quality), text(low), text(high),
            text(one.spread), ", ".join(missing), text(found.tpf, 2), text(one.tokens_per_step, 2), text(found.nfe),
            text(found.query_tokens / count, 0), text(flops and flops / count / 1e9, 2),
            text(moved and moved / count / 1e6, 0),
        ])  # fmt: skip
    return named(heads, ordered, rows)


def speeds(settings: Sequence[Setting], machine: Machine | None) -> Table:
    """Times on the machine where they were taken.

    floor: the least seconds that arithmetic and memory of ``machine`` need. computed / query tokens: rows that ran over
    rows that were asked for. wall / CPU: 1 where the thread that decoded had a core to itself. load: running and
    waiting processes per core. warning: see ``Measures``.
    """
    heads = ["tokens / s", "p50 s", "p95 s", "forwards / s", "floor s", "floor / time",
             "computed / query tokens", "idle forwards", "wall / CPU", "load", "warning"]  # fmt: skip
    ordered, rows = methods(settings), []
    for _, one in each(ordered):
        found, floor = one.measures, floor_of(one, machine)
        rows.append([
            text(found.speed), text(found.p50, 3), text(found.p95, 3),
            text(found.forwards / found.seconds if found.seconds else None), text(floor, 4),
            text(floor * found.samples / found.seconds if floor and found.seconds else None, 3),
            text(found.computed / found.query_tokens if found.computed else None, 2),
            text(found.idle / found.samples if found.idle else None),
            text(one.stretch, 2), text(one.load, 2), found.warning,
        ])  # fmt: skip
    return named(heads, ordered, rows)


def floor_of(one: Setting, machine: Machine | None) -> float | None:
    """The least seconds of a sample that is decoded alone."""
    if machine is None or one.column("flops") is None:
        return None
    return sum(max(r["flops"] / machine.flops, r["bytes"] / machine.bytes) for r in one.rows) / len(one.rows)


def distances(settings: Sequence[Setting], every: Sequence[Setting] | None = None) -> Table:
    """The distance of each setting to its limits. every: among which its oracle is, by default the same."""
    heads = ["oracle / forwards", "lossless minimum / forwards", "as one per step %",
             "bits / forward", "forced %", "budget used %"]  # fmt: skip
    ordered, rows = methods(settings), []
    for _, one in each(ordered):
        found = figures.limits(one, settings if every is None else every)
        rows.append([
            text(found["closeness"], 2), text(found["lossless"], 2), text(found["same"], 0), text(found["bits"], 2),
            text(found["forced"], 0), text(found["budget"], 0),
        ])  # fmt: skip
    return named(heads, ordered, rows)


def curves(settings: Sequence[Setting]) -> Table:
    """A line for each method: the numbers that sum up its curve. In the order that was asked for, else by AUP."""
    levels = [f"PB{level}{kind}" for level in LEVELS for kind in ("", " interp.")]
    heads = ["method", "settings", "AUP", *levels, "best score", "incomplete"]
    found = methods([one for one in settings if one.scores])
    expected = {task for one in settings for task in one.scores}
    ordered = sorted(found, key=lambda one: (one.settings[0].rank, -figures.mean_aup(one, found)))
    rows = []
    for method in ordered:
        steps = figures.steps_of(method)
        pbx = [f(steps, level) for level in LEVELS for f in (figures.pb_discrete, figures.pb_interpolated)]
        partial = sum(set(one.scores) != expected for one in method.settings)
        rows.append([
            method.name, f"{len(method.settings)}", text(figures.mean_aup(method, found)),
            *(text(value) or "-" for value in pbx), text(max(score for _, score in steps)),
            f"{partial}" if partial else "",
        ])  # fmt: skip
    bright = frozenset(number for number, method in enumerate(ordered) if method.is_highlighted)
    return Table(heads, rows, 1, bright).without_empty()


def tasks(settings: Sequence[Setting]) -> Table:
    """The score of each sub-task at each setting."""
    names = list(dict.fromkeys(task for one in settings for task in one.tasks))
    ordered = methods(settings)
    rows = [[text(one.measures.tpf, 2), *(text(one.scores.get(name), 0) for name in names)] for _, one in each(ordered)]
    return named(["tokens / forward", *map(plain, names)], ordered, rows)
