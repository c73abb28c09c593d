"""How two settings differ in score on the same items, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance

PSEUDO_ITEMS = 2  # one won and one lost


@dataclass(frozen=True)
class PairedDifference:
    """How two settings differ in score on the same items."""

    mean: float  # over sub-tasks, of scores in [0, 1]
    low: float  # of the mean's 95 % interval, in [-1, 1]
    high: float  # of the same interval
    items: int  # that both settings decoded


def paired_difference(groups: Sequence[Sequence[float]], z: float = 1.96) -> PairedDifference:
    """The mean over sub-tasks of the differences of scores, each in [-1, 1].

    groups: for each sub-task one difference an item; sub-tasks count alike. For one sub-task of right or wrong answers
    the interval is that of Bonett and Price (2012, J. Educ. Behav. Stat. 37): the normal one after an item that each
    method alone gets right was added. It does not shrink to a point where all answers agree. Graded scores take the
    same two items, the widest that there are, so theirs is rather too wide. With several sub-tasks the
    variance is that within them: which sub-tasks there are is not chance. In simulated sets of 13 sub-tasks with 4 to
    50 items each it holds the true mean in 95 to 100 %; the normal interval without added items in 89 to 98 %.
    """
    means = [fmean(group) for group in groups]
    count = len(groups) ** 2 / sum(1 / len(group) for group in groups)  # all items, where sub-tasks have equally many
    spread = (count - 1) * sum(map(_variance_of_mean, groups)) / len(groups) ** 2
    mean, total = fmean(means), count + PSEUDO_ITEMS
    pseudo_variance = (PSEUDO_ITEMS + PSEUDO_ITEMS * mean**2 * count / total) / total
    half = z * sqrt((count * spread / total + pseudo_variance) / total)
    centre = mean * count / total
    return PairedDifference(mean, max(-1.0, centre - half), min(1.0, centre + half), sum(map(len, groups)))


def _variance_of_mean(group: Sequence[float]) -> float:
    """The variance of one sub-task's mean; unknown for a single item, whose square is used instead."""
    return variance(group) / len(group) if len(group) > 1 else group[0] ** 2
