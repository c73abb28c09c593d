"""The report's tables of settings and methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dllm.record.cost import Machine
from dllm.record.published import Published, beside
from dllm.report import figures
from dllm.report.figures import aup
from dllm.report.methods import Method, each_setting, methods
from dllm.report.origin import stamped_device
from dllm.report.page_pieces import ReportTable, task_words, text
from dllm.report.pooling import SampleRow, SettingResults

PB_LEVELS = (90, 80, 70, 60)
NAME_HEADS = ["method", "setting"]
PUBLISHED_HEADS = [*NAME_HEADS, "whose", "comparable", "hardware", "from",
                   "score", "tokens / s", "tokens / forward", "forwards", "speed-up"]  # fmt: skip
PUBLISHED_WORDS = 6  # columns of words, before the numbers
_Value = float | None


def _named(heads: Sequence[str], found: Sequence[Method], rows: list[list[str]]) -> ReportTable:
    """A table with a line for each setting, which its name opens."""
    settings = [one for _, one in each_setting(found)]
    full = [[one.method, one.name, *row] for one, row in zip(settings, rows, strict=True)]
    bright = frozenset(number for number, one in enumerate(settings) if one.highlighted)
    return ReportTable([*NAME_HEADS, *heads], full, bright=bright).without_empty()


def outcomes(settings: Sequence[SettingResults]) -> ReportTable:
    """Quality and counts, which are the same on every machine and after every resumption.

    Columns low and high are the 95 % interval of the score, of all seeds together. SD over seeds is in points.
    """
    heads = ["seeds", "samples", "score", "low", "high", "SD over seeds", "missing scores", "tokens / forward",
             "positions / forward", "forwards", "query tokens", "GFLOP", "MB moved"]  # fmt: skip
    ordered, rows = methods(settings), []
    for _, one in each_setting(ordered):
        found, (low, high) = one.measures, one.interval or (None, None)
        count, missing = found.samples, sorted(set(one.tasks) - set(one.scores))
        flops, moved = one.column("flops"), one.column("bytes")
        rows.append([
            f"{len(one.seeds)}" if len(one.seeds) > 1 else "", f"{count}", text(one.quality), text(low), text(high),
            "-" if one.seeds_change_nothing else text(one.spread), ", ".join(missing),
            text(found.tpf, 2), text(one.tokens_per_step, 2), text(found.nfe),
            text(found.query_tokens / count, 0), text(flops and flops / count / 1e9, 2),
            text(moved and moved / count / 1e6, 0),
        ])  # fmt: skip
    return _named(heads, ordered, rows)


def speeds(settings: Sequence[SettingResults], machine: Machine | None) -> ReportTable:
    """Times on the machine where they were taken.

    The column floor is the least seconds that arithmetic and memory of ``machine`` need; computed / query tokens, the
    positions that ran over those that were asked for; wall / CPU, 1 where the thread that decoded had a core to
    itself; load, running and waiting processes per core. ``Measures`` explains the warning.
    """
    heads = ["tokens / s", "p50 s", "p95 s", "forwards / s", "floor s", "floor / time",
             "computed / query tokens", "idle forwards", "wall / CPU", "load", "warning"]  # fmt: skip
    ordered, rows = methods(settings), []
    for _, one in each_setting(ordered):
        found, floor = one.measures, floor_of(one, machine)
        rows.append([
            text(found.speed), text(found.p50, 3), text(found.p95, 3),
            text(found.forwards / found.seconds if found.seconds else None), text(floor, 4),
            text(floor * found.samples / found.seconds if floor and found.seconds else None, 3),
            text(found.computed / found.query_tokens if found.computed else None, 2),
            text(found.idle / found.samples if found.idle else None),
            text(one.stretch, 2), text(one.load, 2), found.warning,
        ])  # fmt: skip
    return _named(heads, ordered, rows)


def floor_of(one: SettingResults, machine: Machine | None) -> float | None:
    """The least seconds of a sample that is decoded alone, on a machine for each rank."""
    if machine is None or one.column("flops") is None:
        return None
    ranks = max(int(cell.environment.get("ranks", 1)) for cell in one.cells)
    alone = sum(max(r["flops"] / machine.flops, r["bytes"] / machine.bytes) for r in one.rows) / len(one.rows)
    return alone / ranks


def limit_distances(settings: Sequence[SettingResults], every: Sequence[SettingResults] | None = None) -> ReportTable:
    """The distance of each setting to its limits. every: among which its oracle is, by default the same."""
    heads = ["oracle / forwards", "lossless minimum / forwards", "as one per step %",
             "bits / forward", "forced %", "budget used %"]  # fmt: skip
    ordered, rows = methods(settings), []
    for _, one in each_setting(ordered):
        found = figures.limits(one, settings if every is None else every)
        rows.append([
            text(found["closeness"], 2), text(found["lossless"], 2), text(found["same"], 0), text(found["bits"], 2),
            text(found["forced"], 0), text(found["budget"], 0),
        ])  # fmt: skip
    return _named(heads, ordered, rows)


def curves(settings: Sequence[SettingResults]) -> ReportTable:
    """A line for each method: the numbers that sum up its curve. In the order that was asked for, else by AUP."""
    levels = [f"PB{level}{kind}" for level in PB_LEVELS for kind in ("", " interp.")]
    heads = ["method", "settings", "AUP", *levels, "best score", "incomplete"]
    found = methods([one for one in settings if one.scores])
    expected = {task for one in settings for task in one.scores}
    ordered = sorted(found, key=lambda one: (one.settings[0].rank, -figures.mean_aup(one, found)))
    rows = []
    for method in ordered:
        steps = figures.steps_and_scores(method)
        pbx = [f(steps, level) for level in PB_LEVELS for f in (figures.pb_discrete, figures.pb_interpolated)]
        partial = sum(set(one.scores) != expected for one in method.settings)
        rows.append([
            method.name, f"{len(method.settings)}", text(figures.mean_aup(method, found)),
            *(text(value) or "-" for value in pbx), text(max(score for _, score in steps)),
            f"{partial}" if partial else "",
        ])  # fmt: skip
    bright = frozenset(number for number, method in enumerate(ordered) if method.is_highlighted)
    return ReportTable(heads, rows, 1, bright).without_empty()


def areas(settings: Sequence[SettingResults]) -> ReportTable:
    """AUP of each method with its 95 % interval, the highest first."""
    found = methods([one for one in settings if one.scores])
    lines = [(figures.mean_aup(one, found), one, ends) for one, ends in zip(found, aup_intervals(found), strict=True)]
    ordered = sorted(lines, key=lambda line: (line[1].settings[0].rank, -line[0]))
    rows = [[one.name, text(value), *map(text, ends or (None, None))] for value, one, ends in ordered]
    bright = frozenset(number for number, (_, one, _) in enumerate(ordered) if one.is_highlighted)
    return ReportTable(["method", "AUP", "low", "high"], rows, 1, bright).without_empty()


def tasks(settings: Sequence[SettingResults]) -> ReportTable:
    """The score of each sub-task at each setting."""
    names = list(dict.fromkeys(task for one in settings for task in one.tasks))
    ordered = methods(settings)
    rows = [
        [text(one.measures.tpf, 2), *(text(one.scores.get(name), 0) for name in names)]
        for _, one in each_setting(ordered)
    ]
    return _named(["tokens / forward", *map(task_words, names)], ordered, rows)


def published(settings: Sequence[SettingResults]) -> ReportTable | None:
    """Two lines for each setting of a published experiment: ours, and theirs of the nearest settings. None: none is.

    speed-up: over one token per step, which a run does not measure. comparable: what differs, if anything does.
    """
    rows = []
    for _, one in each_setting(methods(settings)):
        there = one.first.environment
        theirs = beside(one.config, there.get("width"), there.get("architecture"))
        if theirs is not None:
            found, name = one.measures, [one.method, one.name]
            ours: list[_Value] = [one.quality, found.speed, found.tpf, found.nfe, None]
            rows.append([*name, "ours", "", stamped_device(there), one.folders, *_numbers(ours)])
            told = [verdict(theirs), theirs.hardware, _source(theirs)]
            rows.append([*name, "published", *told, *_numbers(_figures(theirs))])
    return ReportTable(PUBLISHED_HEADS, rows, PUBLISHED_WORDS).without_empty() if rows else None


def _numbers(values: Sequence[_Value]) -> list[str]:
    return ["" if value is None or value != value else f"{value:.4g}" for value in values]


def _figures(found: Published) -> list[_Value]:
    return [found.score, found.tokens_per_second, found.tpf, found.nfe, found.speedup]


def _source(found: Published) -> str:
    return f"{found.source}{f' ({found.note})' if found.note else ''}"


def verdict(found: Published) -> str:
    """Whether a cell may be compared with the figures."""
    if not found.has_figures:
        return "no figures are published"
    return f"no: {'; '.join(found.unlike)}" if found.unlike else "yes: the same settings"


RESAMPLES = 400  # of the items; the ends of an interval then move by about a tenth of its width from seed to seed
QUANTILES = (0.025, 0.975)


@dataclass(frozen=True)
class ItemSums:
    """The samples of a setting on one sub-task, summed over each item."""

    scores: Tensor  # [items] of the judged answers, each in [0, 1]
    judged: Tensor  # [items] how many answers were judged
    tokens: Tensor  # [items] useful tokens
    forwards: Tensor  # [items]

    @staticmethod
    def of(rows: Sequence[SampleRow], places: dict[str, int]) -> ItemSums:
        """places: of the sub-task's items, by id."""
        sums = torch.zeros(4, len(places), dtype=torch.float64)
        for row in rows:
            score = row["scores"].get("score")
            counted = (score or 0.0, float(score is not None), row["useful_tokens"], row["nfe"])
            sums[:, places[str(row["id"])]] += torch.tensor(counted, dtype=torch.float64)
        return ItemSums(*sums)

    def points(self, weights: Tensor) -> Tensor:
        """[resamples, 2] useful tokens per forward, and the score in percent; NaN where no answer was judged. weights
        [resamples, items]: how often each item was drawn."""
        speed = weights @ self.tokens / (weights @ self.forwards).clamp(min=1)
        return torch.stack([speed, 100 * (weights @ self.scores) / (weights @ self.judged)], dim=1)


def aup_intervals(found: Sequence[Method], seed: int = 0) -> list[tuple[float, float] | None]:
    """The interval of each method's ``mean_aup``. None: a sub-task has one item, which says nothing of others, or a
    score is not a mean over answers.

    Items are drawn within each sub-task, the same for all methods; all samples of an item go together. Curves and the
    best score that weighs them are those of the drawn items.
    """
    settings = [one for _, one in each_setting(found)]
    tasks = sorted({task for one in settings for task in one.scores})
    places = {task: _places(settings, task) for task in tasks}
    if not tasks or any(len(items) < 2 for items in places.values()) or not all(one.by_answer for one in settings):
        return [None] * len(found)
    generator = torch.Generator().manual_seed(seed)
    drawn = sum(_one_task(found, task, places[task], generator) for task in tasks)
    assert isinstance(drawn, Tensor)
    low, high = (drawn / len(tasks)).quantile(torch.tensor(QUANTILES, dtype=torch.float64), dim=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _places(settings: Sequence[SettingResults], task: str) -> dict[str, int]:
    ids = dict.fromkeys(str(row["id"]) for one in settings for row in one.tasks.get(task, ()))
    return {name: place for place, name in enumerate(ids)}


def _one_task(found: Sequence[Method], task: str, places: dict[str, int], generator: torch.Generator) -> Tensor:
    """[resamples, methods] AUP on one sub-task."""
    chosen = torch.randint(len(places), (RESAMPLES, len(places)), generator=generator)
    weights = torch.zeros(RESAMPLES, len(places), dtype=torch.float64)
    weights.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=torch.float64))
    curves = [
        [ItemSums.of(one.tasks[task], places).points(weights) for one in method.settings if task in one.scores]
        for method in found
    ]
    out = torch.zeros(RESAMPLES, len(found), dtype=torch.float64)
    for number in range(RESAMPLES):
        drawn = [[point[number].tolist() for point in curve] for curve in curves]
        here = [[(speed, score) for speed, score in curve if score == score] for curve in drawn]
        best = max((score for curve in here for _, score in curve), default=0.0)
        out[number] = torch.tensor([aup(curve, best) if curve else 0.0 for curve in here], dtype=torch.float64)
    return out
