"""The fastest setting whose mean loss is at most ``allowed``, with a promise that fails in at most ``alpha`` of cases.

Some items search: successive halving leaves a few settings, whose Pareto front is the order of testing, from the
safest to the fastest. The other items test: setting after setting, until one fails. Since no item serves both and
testing stops at the first failure, the chance that any certified setting truly loses more than ``allowed`` is at most
``alpha``, however many settings there are. Sources: learn then test (arXiv 2110.01052), Pareto testing (arXiv
2210.07913), betting bounds (Waudby-Smith and Ramdas, arXiv 2010.09686, section 4).

A loss is the score of the reference minus the score of the setting, in [-1, 1]; under agreement 1 where the texts
differ, else 0. Settings are named by their places in the grid.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, fsum, inf, isfinite, log, sqrt
from typing import Protocol

import numpy as np

LEAST_ITEMS = 3
LEAST_KEPT = 8  # settings that a drop leaves at least
MOST_NEEDED = 20_000  # items up to which ``items_needed`` counts under agreement
MOST_REPEATS = 1024  # of the losses, up to which it counts for scores


@dataclass(frozen=True)
class Promise:
    """What is promised of a setting."""

    allowed: float  # the mean loss that it may have, in (0, 1)
    alpha: float = 0.05  # how often the promise may fail, in (0, 1)
    binary: bool = False  # the measure can only give 0 or 1 (agreement)

    def p_value(self, losses: Sequence[float]) -> float:
        """Of "the true mean loss is above ``allowed``", for a setting's losses in the order of the items. Under
        agreement the exact binomial tail; else by betting, where the value depends on ``alpha``: compare it with that
        alone."""
        if not losses:
            return 1.0
        if self.binary:
            return binomial_tail(round(fsum(losses)), len(losses), self.allowed)
        return betting_p_value(losses, self.allowed, self.alpha)

    def items_needed(self, losses: Sequence[float]) -> int | None:
        """How many confirming items would do, if these losses of a setting that failed stayed as they are. None: no
        number does, or more than are counted here."""
        if not losses or mean_loss(losses) >= self.allowed:
            return None
        if self.binary:
            return least_items(mean_loss(losses), self.allowed, self.alpha)
        times = 2
        while times <= MOST_REPEATS:
            if self.p_value([*losses] * times) <= self.alpha:
                return times * len(losses)
            times *= 2
        return None


@dataclass(frozen=True)
class SettingTest:
    """A setting that was tested."""

    setting: int  # its place in the grid
    p: float  # 0 for the reference, which is certified without a test
    losses: Sequence[float]  # on the confirming items


@dataclass(frozen=True)
class CertifiedChoice:
    """What was chosen, and how."""

    kept: tuple[int, ...]  # settings that are left after the search
    order: tuple[int, ...]  # of testing: the front, from the safest to the fastest
    tested: tuple[SettingTest, ...]  # up to the first failure
    chosen: int | None  # the last certified setting; None: none is


class LossTable(Protocol):
    """Where losses and costs come from: a decode, or numbers that are there."""

    def search(self, settings: Sequence[int], count: int) -> Mapping[int, tuple[Sequence[float], float]]:
        """Losses on the first ``count`` searching items, and cost, by setting. A setting that fails is left out."""

    def confirm(self, setting: int) -> Sequence[float] | None:
        """Losses on the confirming items; None: they cannot be had."""


def choose(
    table: LossTable, settings: int, searching: int, promise: Promise, reference: int | None = None
) -> CertifiedChoice:
    """Search, then test. settings: how many the grid has. searching: how many items search. reference: its place."""
    kept: Sequence[int] = range(settings)
    for count, drops in ((max(1, ceil(searching / 4)), True), (ceil(searching / 2), True), (searching, False)):
        results = table.search(kept, count)
        losses = {k: mean_loss(of_items) for k, (of_items, _) in results.items()}
        costs = {k: cost for k, (_, cost) in results.items()}
        kept = survivors(sorted(results), losses, costs, promise.allowed) if drops else sorted(results)
    order = front(kept, losses, costs)
    tested, chosen = list[SettingTest](), None
    for k in order:
        own = () if k == reference else table.confirm(k)
        if own is None:  # as if it had failed: to go on would give the others a second chance
            break
        tested.append(SettingTest(k, 0.0 if k == reference else promise.p_value(own), own))
        if tested[-1].p > promise.alpha:
            break
        chosen = k
    return CertifiedChoice(tuple(kept), tuple(order), tuple(tested), chosen)


def split_items(count: int, seed: int) -> tuple[list[int], list[int]]:
    """Places of the items that search and of those that confirm, in the order in which they serve."""
    order = np.random.default_rng(seed).permutation(count).tolist()
    return order[: count // 3], order[count // 3 :]


def survivors(
    settings: Sequence[int], losses: Mapping[int, float], costs: Mapping[int, float], allowed: float
) -> list[int]:
    """What a drop keeps: half of the places for the safest, the others for the fastest among the allowed."""
    places = max(LEAST_KEPT, ceil(len(settings) / 2))
    if len(settings) <= places:
        return list(settings)
    safe = sorted(settings, key=lambda k: (losses[k], costs[k], k))[: ceil(places / 2)]
    others = [k for k in settings if k not in safe]
    fast = sorted(others, key=lambda k: (max(0.0, losses[k] - allowed), costs[k], k))
    return sorted(safe + fast[: places - len(safe)])


def front(settings: Sequence[int], losses: Mapping[int, float], costs: Mapping[int, float]) -> list[int]:
    """Settings that cost less than all that are safer, from the safest on."""
    order, least = list[int](), inf
    for k in sorted(settings, key=lambda k: (losses[k], costs[k], k)):
        if costs[k] < least:
            order.append(k)
            least = costs[k]
    return order


def mean_loss(numbers: Sequence[float]) -> float:
    return fsum(numbers) / len(numbers)


def binomial_tail(ones: int, count: int, share: float) -> float:
    """P[Bin(count, share) <= ones]. Terms are relative to the largest one, so that nothing overflows and no logarithm
    is taken: exact to 1e-12 of itself for a thousand items."""
    if ones >= count:
        return 1.0
    top = min(count, floor((count + 1) * share))
    up, down = np.arange(top + 1, count + 1), np.arange(top, 0, -1)
    odds = share / (1 - share)
    above = np.cumprod((count - up + 1) / up * odds)
    below = np.cumprod(down / ((count - down + 1) * odds))[::-1]
    terms = [*below.tolist(), 1.0, *above.tolist()]
    return fsum(terms[: ones + 1]) / fsum(terms)


def least_items(rate: float, share: float, alpha: float, most: int = MOST_NEEDED) -> int | None:
    """The least n for which P[Bin(n, share) <= ceil(rate n)] is at most ``alpha``; None: none up to ``most``."""
    ones = 0
    while True:  # the n whose ceil(rate n) is ``ones`` are one stretch, in which the tail falls with n
        last = most if rate == 0 else min(most, floor(ones / rate))
        first = 1 if ones == 0 else floor((ones - 1) / rate) + 1
        stretch = range(first, last + 1)
        if stretch and binomial_tail(ones, last, share) <= alpha:
            return stretch[bisect_left(stretch, True, key=lambda n: binomial_tail(ones, n, share) <= alpha)]
        if last >= most:
            return None
        ones += 1


def betting_p_value(losses: Sequence[float], allowed: float, alpha: float) -> float:
    """By the largest capital of bets against "the mean is above ``allowed``" (Waudby-Smith and Ramdas, section 4): for
    numbers in [-1, 1] that vary little."""
    bound, count = (allowed + 1) / 2, len(losses)
    capital = most = 1.0
    total, square, variance = 0.5, 0.25, 0.25
    factor = 2 * log(1 / alpha) / count
    for t, loss in enumerate(losses, 1):
        x = (loss + 1) / 2
        capital *= 1 + min(0.75 / (1 - bound), sqrt(factor / variance)) * (bound - x)
        most = max(most, capital)
        total += x
        square += (x - total / (t + 1)) ** 2
        variance = square / (t + 1)
    assert isfinite(capital)
    return min(1.0, 1 / most)
