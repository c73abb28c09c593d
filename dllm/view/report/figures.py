"""Numbers that sum up a curve of quality against parallelism, and distances to the possible optimum."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, nan

from dllm.record.bounds import bits_bound
from dllm.view.report.methods import Method
from dllm.view.report.pooling import SampleRow, SettingResults


def aup(points: Points, best: float) -> float:
    """Accuracy under parallelism of the curve up to its fastest point within 5 points of the slowest: a sweep may go
    further, where the leaderboard refuses a curve. best: the highest score of all compared methods."""
    return accuracy_under_parallelism(fast_enough(points), best) or 0.0


def pb_discrete(points: Points, level: float) -> float | None:
    """PBx of ParallelBench: the most tokens per step of a setting that scores ``level`` percent or more."""
    return max((step for step, score in points if score >= level), default=None)


def pb_interpolated(points: Points, level: float) -> float | None:
    """PBx with the score interpolated between settings: the most tokens per step at which it reaches ``level``."""
    ascending = sorted(points)
    crossings = [
        a[0] + (level - a[1]) / (b[1] - a[1]) * (b[0] - a[0])
        for a, b in zip(ascending, ascending[1:], strict=False)
        if min(a[1], b[1]) < level <= max(a[1], b[1])
    ]
    return max([*crossings, *(step for step, score in ascending if score >= level)], default=None)


def pareto(points: Points) -> list[bool]:
    """Whether each point is Pareto-optimal: no other is at least as good in both and better in one."""
    return [not any(x >= a and y >= b and (x > a or y > b) for x, y in points) for a, b in points]


def mean_aup(method: Method, others: Sequence[Method]) -> float:
    """AUP, mean over the sub-tasks."""
    tasks = sorted({task for other in others for setting in other.settings for task in setting.scores})
    areas = []
    for task in tasks:
        best = max(setting.scores.get(task, 0.0) for other in others for setting in other.settings)
        points = [
            (tpf_of(setting, task), setting.scores[task]) for setting in method.settings if task in setting.scores
        ]
        areas.append(aup(points, best))
    return sum(areas) / len(areas) if areas else nan


def tpf_of(setting: SettingResults, task: str) -> float:
    """Useful tokens per forward on one sub-task."""
    rows = setting.tasks[task]
    return sum(row["useful_tokens"] for row in rows) / max(1, sum(row["nfe"] for row in rows))


def pairs(setting: SettingResults, oracle: SettingResults) -> list[tuple[SampleRow, SampleRow]]:
    """The rows of the samples, of the same seed and number, that both have."""
    there = {(row["id"], row["run"]): row for row in oracle.rows}
    return [(row, there[key]) for row in setting.rows if (key := (row["id"], row["run"])) in there]


def limits(setting: SettingResults, settings: Sequence[SettingResults]) -> dict[str, float | None]:
    """Distances of a setting to its limits.

    Keys: ``closeness``, the oracle's forwards over the setting's; ``lossless``, the fewest that reproduce one token per
    step, over the setting's; ``same``, percent of texts equal to one token per step; ``bits`` per forward; ``forced``,
    percent of commits that the rule did not accept; ``late``, percent of commits whose token the forward before had
    proposed, if the rows say it; ``budget``, percent used of the bits that the rule allows a
    forward, if it has a bound.
    """
    bits = sum(sum(row["bits"]) for row in setting.rows)
    commits, forwards = sum(sum(row["commits"]) for row in setting.rows), sum(row["nfe"] for row in setting.rows)
    out: dict[str, float | None] = {
        "closeness": None,
        "lossless": None,
        "same": None,
        "bits": bits / max(1, forwards),
        "forced": 100 * sum(sum(row["forced"]) for row in setting.rows) / max(1, commits),
        "late": None,
        "budget": budget_use(setting),
    }
    if commits and all("late" in row for row in setting.rows):  # older versions did not count them
        out["late"] = 100 * sum(sum(row["late"]) for row in setting.rows) / commits
    oracle = next((other for other in settings if other.is_reference and other.layout == setting.layout), None)
    both = [] if oracle is None else pairs(setting, oracle)
    if both:  # cells of a sweep under way may share no sample yet
        mine = sum(row["nfe"] for row, _ in both)
        out |= {
            "closeness": sum(other["nfe"] for _, other in both) / mine,
            "lossless": sum(other["lossless"] for _, other in both) / mine,
            "same": 100 * sum(row["tokens"] == other["tokens"] for row, other in both) / len(both),
        }
    return out


def budget_use(setting: SettingResults) -> float | None:
    """Percent of the rule's budget that its forwards without forced commits use, on average."""
    shares = []
    for row in setting.rows:
        for bits, commits, forced_count in zip(row["bits"], row["commits"], row["forced"], strict=True):
            bound = bits_bound(setting.config["sampler"], commits, width(setting, row))
            if bound and commits and not forced_count:
                shares.append(bits / bound)
    return 100 * sum(shares) / len(shares) if shares else None


def width(setting: SettingResults, row: SampleRow) -> int:
    """The most positions that a forward may commit: a block."""
    length = setting.config["blocks"].get("block_length")
    return min(length, len(row["canvas"])) if length else len(row["canvas"])


Points = Sequence[tuple[float, float]]  # (tokens per forward or step, score in percent)


def accuracy_under_parallelism(points: Points, best: float, alpha: float = 3.0, drop: float = 5.0) -> float | None:
    """AUP of one method (d3LLM, arXiv 2601.07568), as its leaderboard computes it (hao-ai-lab/d3LLM@e5bfcac,
    AUP_leaderboard/aup_utils.py: get_aup).

    best: the highest score of any method on the task. The area under the curve, each score weighed by exp(-alpha times
    its distance from ``best``), plus the unweighed area left of the first point. None where the fastest point scores
    more than ``drop`` points less than the slowest: the leaderboard refuses such a curve. Others that far below the
    slowest do not count.
    """
    ascending = sorted(points)
    if not ascending or best <= 0:
        return 0.0
    slowest = ascending[0][1]
    if slowest - ascending[-1][1] > drop:
        return None
    curve = [(speed, score) for speed, score in ascending if score >= slowest - drop]
    heights = [score * min(1.0, exp(-alpha * (1 - score / best))) for _, score in curve]
    steps = zip(curve, curve[1:], heights, heights[1:], strict=False)
    return curve[0][0] * slowest + sum((b[0] - a[0]) * (u + v) / 2 for a, b, u, v in steps)


def fast_enough(points: Points, drop: float = 5.0) -> Points:
    """The curve up to its fastest point that scores no more than ``drop`` points less than the slowest."""
    ascending = sorted(points)
    good = [number for number, (_, score) in enumerate(ascending) if score >= ascending[0][1] - drop]
    return ascending[: good[-1] + 1] if good else ascending
