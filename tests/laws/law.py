"""Laws: each a function from a case to assertions, registered once. ``make test`` runs a seeded sample of its cases,
``make laws`` (``tests/laws.py``) as many as its time allows.

    @law(combinations, daily=200, least=5000)
    def test_commits_stay(combination: Combination) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from inspect import signature
from itertools import islice
from typing import Any

import pytest
from harness import full

from dllm.parts import parts_in_case, widest_first

Case = Any  # a frozen dataclass, of parts by name, that prints what it is
__all__ = ["Law", "law", "parts_in_case", "widest_first"]
Check = Callable[[Any], None]


@dataclass(frozen=True)
class Law:
    """``cases``: all there are, in an order that LAWS_SEED decides (``harness.drawn``). They must be ``least`` at
    least: over no case every law holds."""

    name: str
    check: Check
    cases: Callable[[], Iterable[Case]]
    daily: int
    least: int

    def all(self) -> list[Case]:
        """Every case. AssertionError when they are too few."""
        return self._enough(every(self.cases), self.least)

    def sample(self) -> list[Case]:
        """``daily`` cases that together show every part, and as many pairs of parts as they can."""
        cases = widest_first(first(self.cases, AMONG * self.daily), self.daily)
        return self._enough(cases, min(self.least, self.daily))

    def _enough(self, cases: list[Case], least: int) -> list[Case]:
        assert len(cases) >= least, f"{self.name} has {len(cases)} cases, and should have {least} at least"
        return cases


LAWS: list[Law] = []
AMONG = 60  # cases from which each of a sample is chosen: with fewer, rare parts are missed; each takes 0.3 ms to ask


def law(of: Callable[[], Iterable[Case]], *, daily: int, least: int) -> Callable[[Check], Check]:
    """Register a law and make it a test of its sample, of every case under DLLM_LAWS=all."""

    def register(check: Check) -> Check:
        one = Law(check.__name__.removeprefix("test_").replace("_", " "), check, of, daily, least)
        LAWS.append(one)
        name = next(iter(signature(check).parameters))
        cases = one.all() if full() else one.sample()
        # Of wider scope than a test, so that pytest runs all laws of a case, which share its decode, before the next.
        return pytest.mark.parametrize(name, cases, ids=str, scope="module")(check)

    return register


@cache  # laws share their cases
def every(cases: Callable[[], Iterable[Case]]) -> list[Case]:
    return list(cases())


@cache
def begun(cases: Callable[[], Iterable[Case]]) -> tuple[Iterator[Case], list[Case]]:
    """Laws share what they have drawn: what is left to draw, and what was drawn."""
    return iter(cases()), []


def first(cases: Callable[[], Iterable[Case]], most: int) -> list[Case]:
    left, before = begun(cases)
    before += islice(left, max(0, most - len(before)))
    return before[:most]
