"""A language as trees over bytes, one for each rule. ``compiled`` makes one minimal automaton of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Bytes:
    """One byte in one of ``ranges``, each (first, last)."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Cat:
    """The parts one after the other; without parts: the empty text."""

    parts: tuple[Tree, ...] = ()


@dataclass(frozen=True)
class Alt:
    """One of the cases; without cases: nothing at all."""

    cases: tuple[Tree, ...] = ()


@dataclass(frozen=True)
class Rep:
    """``low`` to ``high`` repetitions (None: any number)."""

    part: Tree
    low: int = 0
    high: int | None = None


@dataclass(frozen=True)
class Some:
    """One or more of the parts, in their order, with ``between`` between neighbours; each part is written once.

    again: the last part may stand several times.
    """

    parts: tuple[Tree, ...]
    between: Tree
    again: bool = False


@dataclass(frozen=True)
class RuleCall:
    """A word of the rule of this name."""

    rule: str


@dataclass(frozen=True)
class Automaton:
    """A word of an automaton made before: of a product or a complement."""

    automaton: ByteAutomaton


Tree = Bytes | Cat | Alt | Rep | Some | RuleCall | Automaton


@dataclass(frozen=True)
class Language:
    """The words of ``rules[start]``. depth: how often rules that contain themselves are entered in each other."""

    rules: Mapping[str, Tree]
    start: str = "start"
    depth: int = 4


@dataclass(frozen=True, eq=False)
class ByteAutomaton:
    """A deterministic automaton over bytes, minimal and without states that lead nowhere; it starts in state 0.

    moves [S, 256] int32: the state that each byte leads to (-1: none). accepting [S] bool. No state: the empty
    language.
    """

    moves: IntArray
    accepting: BoolArray

    def accepts(self, text: bytes) -> bool:
        """Whether ``text`` is a word."""
        state = 0 if len(self.moves) else -1
        for byte in text:
            if state >= 0:
                state = int(self.moves[state, byte])
        return state >= 0 and bool(self.accepting[state])
