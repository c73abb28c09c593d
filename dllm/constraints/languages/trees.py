"""A language as trees over bytes, one for each rule. ``compiled`` makes one minimal automaton of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]
COUNT_BITS = 20  # counts, and the states of an automaton that counts, have at most that many bits


@dataclass(frozen=True)
class Bytes:
    """One byte in one of ``ranges``, each (first, last)."""

    ranges: tuple[tuple[int, int], ...]  # each (first, last)


@dataclass(frozen=True)
class Cat:
    """The parts one after the other; without parts: the empty text."""

    parts: tuple[Tree, ...] = ()  # in their order


@dataclass(frozen=True)
class Alt:
    """One of the cases; without cases: nothing at all."""

    cases: tuple[Tree, ...] = ()  # in any order


@dataclass(frozen=True)
class Rep:
    """``low`` to ``high`` repetitions (None: any number)."""

    part: Tree  # what is repeated
    low: int = 0  # the fewest repetitions
    high: int | None = None  # the most; None: any number


@dataclass(frozen=True)
class OneOrMore:
    """One or more of the parts, in their order, with ``between`` between neighbours; each part is written once."""

    parts: tuple[Tree, ...]  # in their order
    between: Tree  # what is between two neighbours
    again: bool = False  # the last part may repeat


@dataclass(frozen=True)
class RuleCall:
    """A word of the rule of this name."""

    rule: str  # its name


@dataclass(frozen=True)
class Automaton:
    """A word of an automaton made before: of a product or a complement."""

    automaton: ByteAutomaton  # made before


@dataclass(frozen=True, eq=False)
class Rounds:
    """What is repeated and counted."""

    moves: IntArray  # [W, 256] the state that each byte leads to, from 0 on (-1: none)
    counts: BoolArray  # [W, 256] where a byte begins another round
    ends: BoolArray  # [W] where the last one may end


@dataclass(frozen=True)
class Counted:
    """A counted repetition between two bytes. No round goes on with ``closes`` where it may end."""

    opens: int  # the first byte
    rounds: Rounds  # what is repeated
    low: int  # the fewest rounds
    high: int  # the most rounds
    closes: int  # the last byte


Tree = Bytes | Cat | Alt | Rep | OneOrMore | RuleCall | Automaton | Counted


def inner_trees(tree: Tree) -> tuple[Tree, ...]:
    """The trees that a tree is made of, each as often as it is written there."""
    match tree:
        case Cat(inner) | Alt(inner):
            return inner
        case Rep(part):
            return (part,)
        case OneOrMore(parts, between):
            return (*parts, *[between] * len(parts))
    return ()


@dataclass(frozen=True)
class Language:
    """The words of ``rules[start]``."""

    rules: Mapping[str, Tree]  # by name
    start: str = "start"  # the rule whose words these are
    depth: int = 4  # how often rules that contain themselves are entered in each other


@dataclass(frozen=True, eq=False)
class Counters:
    """Which states of an automaton count."""

    home: IntArray  # [S] the part that a state belongs to, -1: it counts nothing
    low: IntArray  # [S] the part is entered with a count of 0, and left with at least this
    high: IntArray  # [S] the part never holds more
    counts: BoolArray  # [S, 256] where a byte within the part adds one


@dataclass(frozen=True, eq=False)
class ByteAutomaton:
    """A deterministic automaton over bytes, minimal and without states that lead nowhere; it starts in state 0.
    No state: the empty language.
    """

    moves: IntArray  # [S, 256] int32, the state that each byte leads to (-1: none)
    accepting: BoolArray  # [S] a text may end here
    counters: Counters | None = None  # None where no state counts

    def accepts(self, text: bytes) -> bool:
        """Whether ``text`` is a word."""
        state, _ = self.place(text)
        return state >= 0 and bool(self.accepting[state])

    def place(self, text: bytes) -> tuple[int, int]:
        """The state that ``text`` leads to, -1: none, and what it has counted there."""
        state, count = 0 if len(self.moves) else -1, 0
        for byte in text:
            if state >= 0:
                state, count = self._after(state, count, byte)
        return state, count

    def _after(self, state: int, count: int, byte: int) -> tuple[int, int]:
        target, counters = int(self.moves[state, byte]), self.counters
        if counters is None or target < 0 or counters.home[state] < 0:
            return target, 0
        if counters.home[state] == counters.home[target]:
            count += int(counters.counts[state, byte])
            return (target, count) if count <= counters.high[state] else (-1, 0)
        return (target, 0) if count >= counters.low[state] else (-1, 0)
