"""How large a language may become, and how long that may take; checked wherever automata grow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf

from dllm.common.errors import Refusal
from dllm.common.links import follows

# Nondeterministic states per state allowed: 200,000 for 20,000. Their arcs and reach are bounded by 40 of these each,
# so that every table stays below some 200 MB.
LOOSE = 10
# Deterministic states before equal ones are merged, per state allowed.
UNMERGED = 4
# States with their counts, per state allowed: a set of them is a bit for each, 160 kB for 20,000.
COUNTED_PLACES = 64


class TooSlow(Refusal):
    """A language that took more seconds than it was given; with more it might be compiled."""


class TooManyStates(Refusal):
    """A language that needs more states than it was given."""


@dataclass(frozen=True)
class CompileLimits:
    """How much compiling may take."""

    states: int = 20_000  # of the finished automaton
    seconds: float = 10.0  # to compile it
    depth: int | None = 4  # the one to name in refusals, None: no such


class Budget:
    """``CompileLimits`` with a clock that runs since it was made: the time of this thread, so that what is refused does
    not depend on what else the machine does."""

    def __init__(self, limits: CompileLimits) -> None:
        self.limits = limits
        # What rank 0 has compiled in time, its followers must, too.
        self._deadline = inf if follows() else time.thread_time() + limits.seconds

    def states(self, count: int) -> None:
        """Refuse more states than allowed, or more time. Raises UserError."""
        if count > self.limits.states:
            raise self.too_large()
        self.time(count)

    def unmerged(self, count: int) -> None:
        """The same for states that may often turn out equal: four times as many."""
        self.states(-(-count // UNMERGED))

    def nondeterministic(self, count: int) -> None:
        """The same for nondeterministic states: ten times as many. It does not read the clock."""
        if count > LOOSE * self.limits.states:
            raise self.too_large()

    def counts(self, count: int) -> None:
        """The same for states each with all its counts: 64 times as many. It does not read the clock."""
        if count > COUNTED_PLACES * self.limits.states:
            raise self.too_large()

    def time(self, count: int) -> None:
        """Refuse more time than allowed; count: the states there are by now. Raises TooSlow."""
        if time.thread_time() > self._deadline:
            spent = f"the {{constraint:name}} took more than {self.limits.seconds:g} s to compile ({count} states)."
            lower = "" if self.limits.depth is None else "Lower {constraint.depth:name}, or write it more simply."
            raise TooSlow(spent, note=lower or "Write it more simply.")

    def too_large(self) -> TooManyStates:
        needs, depth = f"the {{constraint:name}} needs more than {self.limits.states} states", self.limits.depth
        if depth is None:
            return TooManyStates(f"{needs}.", note="Shorten counted repetitions, or write it more simply.")
        lower = "Lower {constraint.depth:name}, or shorten counted repetitions."
        return TooManyStates(f"{needs} at depth {depth}.", note=lower)


_BUDGET: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def within_limits(limits: CompileLimits) -> Iterator[None]:
    """Every automaton made inside shares these limits and one clock; elsewhere each has the default ones for itself."""
    token = _BUDGET.set(Budget(limits))
    try:
        yield
    finally:
        _BUDGET.reset(token)


def budget() -> Budget:
    return _BUDGET.get() or Budget(CompileLimits())
