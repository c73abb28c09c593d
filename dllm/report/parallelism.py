"""Numbers that sum up a curve of quality against parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

Points = Sequence[tuple[float, float]]  # (tokens per forward or step, score in percent)


def accuracy_under_parallelism(points: Points, best: float, alpha: float = 3.0, drop: float = 5.0) -> float | None:
    """AUP of one method (d3LLM, arXiv 2601.07568), as its leaderboard computes it (hao-ai-lab/d3LLM@e5bfcac,
    AUP_leaderboard/aup_utils.py: get_aup).

    best: the highest score of any method on the task. The area under the curve, each score weighed by exp(-alpha times
    its distance from ``best``), plus the unweighed area left of the first point. None where the fastest point scores
    more than ``drop`` points less than the slowest: the leaderboard refuses such a curve. Others that far below the
    slowest do not count.
    """
    ordered = sorted(points)
    if not ordered or best <= 0:
        return 0.0
    slowest = ordered[0][1]
    if slowest - ordered[-1][1] > drop:
        return None
    kept = [(speed, score) for speed, score in ordered if score >= slowest - drop]
    weighed = [score * min(1.0, exp(-alpha * (1 - score / best))) for _, score in kept]
    steps = zip(kept, kept[1:], weighed, weighed[1:], strict=False)
    return kept[0][0] * slowest + sum((b[0] - a[0]) * (u + v) / 2 for a, b, u, v in steps)


def fast_enough(points: Points, drop: float = 5.0) -> Points:
    """The curve up to its fastest point that scores no more than ``drop`` points less than the slowest."""
    ordered = sorted(points)
    good = [number for number, (_, score) in enumerate(ordered) if score >= ordered[0][1] - drop]
    return ordered[: good[-1] + 1] if good else ordered
