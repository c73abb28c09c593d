"""The report's tables of settings and methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isnan, nan
from typing import Any

import numpy as np
import torch

from dllm.record.cost import Machine
from dllm.record.published import PaperRow, beside
from dllm.view.report import figures
from dllm.view.report.figures import aup
from dllm.view.report.methods import Method, each_setting, methods
from dllm.view.report.origin import stamped_device
from dllm.view.report.page_pieces import ReportTable, task_words, text
from dllm.view.report.pooling import SettingResults

PB_LEVELS = (90, 80, 70, 60)
NAME_HEADS = ["method", "setting"]
PUBLISHED_HEADS = [*NAME_HEADS, "whose", "verdict", "hardware", "from",
                   "score", "low", "high", "tokens / s", "tokens / forward", "forwards", "speed-up"]  # fmt: skip
PUBLISHED_WORDS = 6  # columns of words, before the numbers
LineCells = Mapping[str, Callable[[SettingResults], str]]  # of a line, by the heads of their columns


def setting_table(settings: Sequence[SettingResults], cells: LineCells) -> ReportTable:
    """A table with a line for each setting, which its name opens, without columns that are empty."""
    lines = [s for _, s in each_setting(methods(settings))]
    rows = [[s.method, s.name, *(cell(s) for cell in cells.values())] for s in lines]
    bright = frozenset(number for number, s in enumerate(lines) if s.is_highlighted)
    return ReportTable([*NAME_HEADS, *cells], rows, bright=bright).without_empty()


def _number(read: Callable[[SettingResults], float | None], digits: int = 1) -> Callable[[SettingResults], str]:
    """A cell; empty for None and NaN."""
    return lambda s: text(read(s), digits)


def _over(setting: SettingResults, name: str, unit: float) -> float | None:
    """The mean of an entry, in a unit."""
    mean = setting.mean(name)
    return None if mean is None else mean / unit


# Quality and counts, which are the same on every machine and after every resumption. low and high are the 95 % interval
# of the score, of all seeds together. SD over seeds is in points.
OUTCOMES: LineCells = {
    "seeds": lambda s: f"{len(s.seeds)}" if len(s.seeds) > 1 else "",
    "samples": lambda s: f"{s.measures.samples}",
    "score": _number(lambda s: s.quality),
    "low": _number(lambda s: s.interval and s.interval[0]),
    "high": _number(lambda s: s.interval and s.interval[1]),
    "SD over seeds": lambda s: "-" if s.seeds_change_nothing else text(s.spread),
    "missing scores": lambda s: ", ".join(sorted(set(s.tasks) - set(s.scores))),
    "tokens / forward": _number(lambda s: s.measures.tpf if s.measures.forwards else None, 2),
    "positions / forward": _number(lambda s: s.tokens_per_step if s.measures.forwards else None, 2),
    "forwards": _number(lambda s: s.measures.nfe or None),
    "query tokens": _number(lambda s: s.mean("query_tokens"), 0),
    "GFLOP": _number(lambda s: _over(s, "flops", 1e9), 2),
    "MB moved": _number(lambda s: _over(s, "bytes", 1e6), 0),
}


def speeds(settings: Sequence[SettingResults], machine: Machine | None) -> ReportTable:
    """Times on the machine where they were taken.

    The column floor is the least seconds that arithmetic and memory of ``machine`` need; computed / query tokens, the
    positions that ran over those that were asked for; wall / CPU, 1 where the thread that decoded had a core to
    itself; load, running and waiting processes per core. ``Measures`` explains the warning.
    """

    def share_of_floor(setting: SettingResults) -> float | None:
        floor, seconds = floor_of(setting, machine), setting.measures.seconds
        return floor * setting.measures.samples / seconds if floor and seconds else None

    cells: LineCells = {
        "tokens / s": _number(lambda s: s.measures.speed),
        "p50 s": _number(lambda s: s.measures.p50, 3),
        "p95 s": _number(lambda s: s.measures.p95, 3),
        "forwards / s": _number(lambda s: s.measures.forwards / (s.measures.seconds or nan)),
        "floor s": _number(lambda s: floor_of(s, machine), 4),
        "floor / time": _number(share_of_floor, 3),
        "computed / query tokens": _number(
            lambda s: s.measures.computed_tokens / s.measures.query_tokens if s.measures.computed_tokens else None, 2
        ),
        "idle forwards": _number(lambda s: s.measures.idle / s.measures.samples or None),
        "wall / CPU": _number(lambda s: s.stretch, 2),
        "load": _number(lambda s: s.mean("load"), 2),
        "warning": lambda s: s.measures.warning,
    }
    return setting_table(settings, cells)


def floor_of(setting: SettingResults, machine: Machine | None) -> float | None:
    """The least seconds of a sample that is decoded alone, on a machine for each rank."""
    if machine is None or setting.column("flops") is None:
        return None
    ranks = max(int(cell.environment.get("ranks", 1)) for cell in setting.cells)
    alone = sum(max(r["flops"] / machine.flops, r["bytes"] / machine.bytes) for r in setting.rows) / len(setting.rows)
    return alone / ranks


LIMIT_COLUMNS = {  # the key of ``figures.limits`` and the digits, by the column's head
    "oracle / forwards": ("closeness", 2),
    "lossless minimum / forwards": ("lossless", 2),
    "as one per step %": ("same", 0),
    "bits / forward": ("bits", 2),
    "forced %": ("forced", 0),
    "budget used %": ("budget", 0),
}


def limit_distances(settings: Sequence[SettingResults], every: Sequence[SettingResults] | None = None) -> ReportTable:
    """The distance of each setting to its limits. every: among which its oracle is, by default the same."""
    limits = {id(s): figures.limits(s, settings if every is None else every) for s in settings}
    cells = {
        head: _number(lambda s, key=key: limits[id(s)][key], digits)  # type: ignore[misc]
        for head, (key, digits) in LIMIT_COLUMNS.items()
    }
    return setting_table(settings, cells)


def curves(settings: Sequence[SettingResults]) -> ReportTable:
    """A line for each method: the numbers that sum up its curve. In the order that was asked for, else by AUP."""
    levels = [f"PB{level}{kind}" for level in PB_LEVELS for kind in ("", " interp.")]
    heads = ["method", "settings", "AUP", *levels, "best score", "incomplete"]
    all_methods = methods([s for s in settings if s.scores])
    task_names = {task for s in settings for task in s.scores}
    ranking = sorted(all_methods, key=lambda m: (m.settings[0].rank, -figures.mean_aup(m, all_methods)))
    rows = []
    for method in ranking:
        steps = [(s.tokens_per_step, s.quality) for s in method.settings]
        pbx = [f(steps, level) for level in PB_LEVELS for f in (figures.pb_discrete, figures.pb_interpolated)]
        partial = sum(set(s.scores) != task_names for s in method.settings)
        rows.append(
            [
                method.name,
                f"{len(method.settings)}",
                text(figures.mean_aup(method, all_methods)),
                *(text(value) or "-" for value in pbx),
                text(max(score for _, score in steps)),
                f"{partial}" if partial else "",
            ]
        )
    bright = frozenset(number for number, method in enumerate(ranking) if method.is_highlighted)
    return ReportTable(heads, rows, 1, bright).without_empty()


def areas(settings: Sequence[SettingResults]) -> ReportTable:
    """AUP of each method with its 95 % interval, the highest first."""
    all_methods = methods([s for s in settings if s.scores])
    intervals = zip(all_methods, aup_intervals(all_methods), strict=True)
    lines = [(figures.mean_aup(method, all_methods), method, ends) for method, ends in intervals]
    ranking = sorted(lines, key=lambda line: (line[1].settings[0].rank, -line[0]))
    rows = [[method.name, text(value), *map(text, ends or (None, None))] for value, method, ends in ranking]
    bright = frozenset(number for number, (_, method, _) in enumerate(ranking) if method.is_highlighted)
    return ReportTable(["method", "AUP", "low", "high"], rows, 1, bright).without_empty()


def tasks(settings: Sequence[SettingResults]) -> ReportTable:
    """The score of each sub-task at each setting."""
    names = list(dict.fromkeys(task for s in settings for task in s.tasks))
    scores = {task_words(name): _number(lambda s, name=name: s.scores.get(name), 0) for name in names}  # type: ignore[misc]
    return setting_table(settings, {"tokens / forward": _number(lambda s: s.measures.tpf, 2), **scores})


def published_table(settings: Sequence[SettingResults]) -> ReportTable | None:
    """Two lines for each setting of a published experiment: ours, and theirs of the nearest settings. None: none is.

    The interval is that of our score at 95 %. A speed-up is over one token per step, which a run does not measure.
    """
    rows = []
    for _, s in each_setting(methods(settings)):
        there = s.first.environment
        theirs = beside(s.config, there.get("width"), there.get("architecture"))
        if theirs is not None:
            measures, name = s.measures, [s.method, s.name]
            ours = [s.quality, *(s.interval or (None, None)), measures.speed, measures.tpf, measures.nfe, None]
            rows.append([*name, "ours", "", stamped_device(there), s.folders, *_numbers(ours)])
            source = f"{theirs.source}{f' ({theirs.note})' if theirs.note else ''}"
            numbers = [theirs.score, None, None, theirs.tokens_per_second, theirs.tpf, theirs.nfe, theirs.speedup]
            notes = [verdict(theirs, s.interval), theirs.hardware, source]
            rows.append([*name, "published", *notes, *_numbers(numbers)])
    return ReportTable(PUBLISHED_HEADS, rows, PUBLISHED_WORDS).without_empty() if rows else None


def _numbers(values: Sequence[float | None]) -> list[str]:
    return ["" if value is None or value != value else f"{value:.4g}" for value in values]


WHOLE_RANGE = (0.0, 100.0)  # where no answer could be judged


def verdict(paper: PaperRow, interval: tuple[float, float] | None) -> str:
    """Whether a cell reproduces a published score: whether that score is inside the 95 % interval of the cell's."""
    if not paper.has_figures:
        return "no figures are published"
    if paper.unlike:
        return f"not comparable: these settings differ: {'; '.join(paper.unlike)}"
    if paper.score is None:
        return "the settings are the published ones; no score is published"
    if interval is None or interval == WHOLE_RANGE:
        return "the settings are the published ones; our score is missing or has no interval"
    low, high = interval
    if low <= paper.score <= high:
        return f"reproduces: {paper.score:g} is inside {low:.1f} to {high:.1f}"
    return f"differs: {paper.score:g} is outside {low:.1f} to {high:.1f}"


RESAMPLES = 400  # of the items; the ends of an interval then move by about a tenth of its width from seed to seed
QUANTILES = (0.025, 0.975)


def aup_intervals(group: Sequence[Method], seed: int = 0) -> list[tuple[float, float] | None]:
    """The interval of each method's ``mean_aup``. None: a sub-task has one item, so that the variance is unknown, or a
    score is not a mean over answers.

    Items are drawn within each sub-task, the same for all methods; all samples of an item go together. Curves and the
    best score that weighs them are those of the drawn items.
    """
    settings = [s for _, s in each_setting(group)]
    tasks = sorted({task for s in settings for task in s.scores})
    items = {
        task: list(dict.fromkeys(str(row["id"]) for s in settings for row in s.tasks.get(task, ()))) for task in tasks
    }
    if not tasks or any(len(names) < 2 for names in items.values()) or not all(s.by_answer for s in settings):
        return [None] * len(group)
    generator = torch.Generator().manual_seed(seed)
    draws = sum(_drawn_areas(group, task, items[task], generator) for task in tasks)
    low, high = np.quantile(draws / len(tasks), QUANTILES, axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _drawn_areas(group: Sequence[Method], task: str, items: list[str], generator: torch.Generator) -> Any:
    """[resamples, methods] AUP on one sub-task."""
    picks = torch.randint(len(items), (RESAMPLES, len(items)), generator=generator).numpy()
    weights = np.stack([np.bincount(pick, minlength=len(items)) for pick in picks])  # how often each item was drawn
    curves = [
        [_drawn_points(setting, task, items, weights) for setting in method.settings if task in setting.scores]
        for method in group
    ]
    out = np.zeros((RESAMPLES, len(group)))
    for draw in range(RESAMPLES):
        here = [[points[draw] for points in curve if not isnan(points[draw][1])] for curve in curves]
        best = max((score for curve in here for _, score in curve), default=0.0)
        out[draw] = [aup(curve, best) if curve else 0.0 for curve in here]
    return out


def _drawn_points(setting: SettingResults, task: str, items: list[str], weights: Any) -> list[tuple[float, float]]:
    """Useful tokens per forward, and the score in percent, of each draw; NaN where no answer was judged."""
    mine = setting.frame[setting.frame["task"] == task]
    sums = mine.assign(judged=mine["score"].notna()).groupby("id")[["score", "judged", "useful_tokens", "nfe"]].sum()
    right, answers, tokens, forwards = weights @ sums.reindex(items, fill_value=0).to_numpy(float).T[:, :, None]
    with np.errstate(invalid="ignore"):
        points = np.hstack([tokens / np.maximum(forwards, 1), 100 * right / answers])
    return [(speed, score) for speed, score in points.tolist()]
