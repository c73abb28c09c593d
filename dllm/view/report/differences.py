"""Paired differences: every setting's score minus the baseline's, on the same items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pandas import Series, concat

from dllm.record.paired import PairedDifference, paired_difference
from dllm.view.report.methods import Method, baseline, each_setting, methods
from dllm.view.report.page_pieces import ReportTable, task_words
from dllm.view.report.pooling import SettingResults
from dllm.view.report.setting_tables import NAME_HEADS

METHOD = (
    "Score minus the baseline's on the same items, in points, mean over sub-tasks. Answers are paired by item, seed "
    "and number; of several pairs of an item the mean counts, as one. low, high: Bonett and Price's 95 % interval for "
    "paired scores (2012), of each comparison by itself. worse, better: sub-tasks whose own interval is wholly below "
    "or above 0. left out: items that one of the two lacks at a common seed, that were asked in other words, or that "
    "could not be judged in both. By sub-task, * marks an interval without 0."
)


ITEM = ["task", "id"]
SAMPLE = [*ITEM, "run", "prompt"]  # what two samples share that can be compared: item, seed, number and words


@dataclass(frozen=True)
class Comparison:
    differences: Series  # of every item that both judged, by sub-task and item; answers to an item count as one
    left_out: int  # how many items could not be paired

    @staticmethod
    def of(setting: SettingResults, base: SettingResults) -> Comparison:
        if not (setting.by_answer and base.by_answer):
            return Comparison(Series(dtype=float), 0)  # a score over all answers belongs to no item
        both = setting.frame[[*SAMPLE, "score"]].merge(base.frame[[*SAMPLE, "score"]], on=SAMPLE)
        differences = (both["score_x"] - both["score_y"]).groupby([both[name] for name in ITEM]).mean().dropna()
        items = concat([setting.frame[ITEM], base.frame[ITEM]]).drop_duplicates()
        return Comparison(differences, len(items) - len(differences))

    @cached_property
    def groups(self) -> dict[str, list[float]]:
        return {str(task): list(values) for task, values in self.differences.groupby(level=0)}

    @property
    def whole(self) -> PairedDifference | None:
        """None where no item could be paired."""
        return paired_difference(list(self.groups.values())) if self.groups else None

    def of_task(self, task: str) -> PairedDifference | None:
        return paired_difference([self.groups[task]]) if task in self.groups else None


def baseline_of(group: Sequence[Method]) -> SettingResults:
    """One token per step, or else the first setting that has a score."""
    with_scores = [method.only(lambda s: bool(s.scores)) for method in group]
    return baseline(with_scores) or next(s for _, s in each_setting(with_scores))


@dataclass(frozen=True)
class Differences:
    notes: list[str]  # how they were compared
    whole: ReportTable  # a line for each setting
    tasks: ReportTable  # a column for each sub-task, for the page
    every_task: ReportTable  # a line for each setting and sub-task, with its interval


def differences_of(settings: Sequence[SettingResults], base: SettingResults | None = None) -> Differences | None:
    """base: what the others are compared with; None: one token per step, or else the first one that has a score.

    None where there is nothing to compare: no other setting than the baseline, or no score.
    """
    all_methods = methods(settings)
    if not any(s.scores for s in settings) or (base is None and len(settings) < 2):
        return None
    base = base or baseline_of(all_methods)
    own = (base.suite, base.model, base.method, base.name)
    others = [
        (s, Comparison.of(s, base)) for _, s in each_setting(all_methods) if (s.suite, s.model, s.method, s.name) != own
    ]
    notes = [f"Baseline: {base.method}, {base.name} ({base.folders}). {METHOD}"]
    without_pairs = [f"{s.method}, {s.name}" for s, comparison in others if not comparison.groups]
    if without_pairs:
        notes.append(f"Not compared, since they share no judged item with the baseline: {'; '.join(without_pairs)}.")
    rows = [([s.method, s.name], comparison) for s, comparison in others if comparison.groups]
    if not others:
        return None
    names = list(dict.fromkeys(task for s in settings for task in s.scores))
    heads = [*NAME_HEADS, "items", "left out", "difference", "low", "high", "worse", "better"]
    whole = ReportTable(heads, [[*name, *_whole(comparison)] for name, comparison in rows]).without_empty()
    by_task = [[*name, *(points(d) + mark(d) for d in map(comparison.of_task, names))] for name, comparison in rows]
    every = [
        [*name, task_words(task), f"{single.items}", points(single), *ends(single)]
        for name, comparison in rows
        for task in names
        if (single := comparison.of_task(task)) is not None
    ]
    every_heads = [*NAME_HEADS, "sub-task", "items", "difference", "low", "high"]
    tasks = ReportTable([*NAME_HEADS, *map(task_words, names)], by_task)
    return Differences(notes, whole, tasks, ReportTable(every_heads, every, words=3))


def _whole(comparison: Comparison) -> list[str]:
    """The cells of a setting, over all sub-tasks."""
    whole, single = comparison.whole, [task for task in map(comparison.of_task, comparison.groups) if task is not None]
    worse, better = sum(task.high < 0 for task in single), sum(task.low > 0 for task in single)
    items = f"{whole.items if whole else 0}"
    return [items, f"{comparison.left_out or ''}", points(whole), *ends(whole), f"{worse or ''}", f"{better or ''}"]


def mark(difference: PairedDifference | None) -> str:
    return "*" if difference is not None and (difference.high < 0 or difference.low > 0) else ""


def points(difference: PairedDifference | None) -> str:
    return "" if difference is None else signed_points(difference.mean)


def ends(difference: PairedDifference | None) -> tuple[str, str]:
    return ("", "") if difference is None else (signed_points(difference.low), signed_points(difference.high))


def signed_points(share: float) -> str:
    """In points; nothing is not a gain."""
    return f"{100 * share:+.1f}" if abs(share) >= 5e-4 else "0.0"
