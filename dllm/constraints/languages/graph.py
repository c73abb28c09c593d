"""Trees as a nondeterministic automaton: states, arcs that read, and steps that read nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dllm.constraints.languages.arrays import Long, heads
from dllm.constraints.languages.counting import unroll
from dllm.constraints.languages.limits import budget
from dllm.constraints.languages.trees import (
    Alt,
    Automaton,
    Bytes,
    Cat,
    Counted,
    IntArray,
    OneOrMore,
    Rep,
    RuleCall,
    Tree,
)

# Symbols: the bytes, then a part that counts for each of that many kinds; CALLS + r is a call of rule number r.
BYTE_SYMBOLS, KIND_SYMBOLS = 256, 64
CALLS = BYTE_SYMBOLS + KIND_SYMBOLS

Legs = Sequence[tuple[Tree, int, int]]  # a tree, and the states that its words are to connect


class Graph:
    """States 0 to ``size`` - 1; arcs [A, 4]: source, first and last symbol, target; steps [E, 2]: source, target."""

    def __init__(self) -> None:
        self.size, self.budget = 0, budget()
        self._arcs: list[tuple[int, int, int, int]] = []
        self._steps: list[tuple[int, int]] = []
        self._blocks: list[NDArray[np.integer]] = []

    def states(self, count: int) -> int:
        """Make ``count`` states; the first of them. Raises UserError beyond the limit."""
        first, self.size = self.size, self.size + count
        self.budget.nondeterministic(self.size)
        return first

    def arc(self, source: int, first: int, last: int, target: int) -> None:
        self._arcs.append((source, first, last, target))

    def step(self, source: int, target: int) -> None:
        self._steps.append((source, target))

    def copy(self, arcs: NDArray[np.integer], count: int) -> int:
        """A copy of ``count`` states with their arcs [A, 4]; the first of them."""
        first = self.states(count)
        self._blocks.append(arcs + np.array([first, 0, 0, first]))
        return first

    @property
    def arcs(self) -> Long:
        own = np.array(self._arcs, np.int64).reshape(-1, 4)
        return np.concatenate([own, *self._blocks]).astype(np.int64)

    @property
    def steps(self) -> Long:
        return np.array(self._steps, np.int64).reshape(-1, 2)


def runs(moves: IntArray) -> IntArray:
    """Arcs [A, 4] of moves [S, 256]: neighbouring bytes with one target are one arc."""
    if not len(moves):
        return np.empty((0, 4), np.int32)
    new = np.ones(moves.shape, bool)
    new[:, 1:] = moves[:, 1:] != moves[:, :-1]
    row, low = np.nonzero(new)
    last = np.append(low[1:], 0) - 1
    last[np.append(heads(row)[1:], len(row)) - 1] = moves.shape[1] - 1
    target = moves[row, low]
    return np.stack([row, low, last, target], axis=1)[target >= 0].astype(np.int32)


class Wiring:
    """Writes trees into a graph. numbers: rules that stay calls; all others are replaced by their trees. kinds: parts
    that stay symbols; in all others each count becomes states of its own."""

    def __init__(
        self, graph: Graph, rules: Mapping[str, Tree], numbers: Mapping[str, int], kinds: Mapping[Counted, int]
    ) -> None:
        self.graph, self.rules, self.numbers, self.kinds = graph, rules, numbers, kinds
        self._runs: dict[int, IntArray] = {}  # by the id of an array that some tree holds
        self._trees: dict[Counted, Tree] = {}

    def between(self, tree: Tree, source: int, target: int) -> None:
        """Lead from ``source`` to ``target`` by the words of ``tree``. Trees of long chains of definitions are deeper
        than Python's stack, so that this has its own."""
        waiting: list[tuple[Tree, int, int]] = [(tree, source, target)]
        count = 0
        while waiting:
            tree, source, target = waiting.pop()
            waiting.extend(self._write(tree, source, target))
            count += 1
            if count % 4096 == 0:
                self.graph.budget.time(self.graph.size)
                self.graph.budget.nondeterministic(count // 16)

    def _write(self, tree: Tree, source: int, target: int) -> Legs:
        match tree:
            case Bytes(ranges):
                for first, last in ranges:
                    self.graph.arc(source, first, last, target)
            case Cat(parts):
                return self._chain(parts, source, target)
            case Alt(cases):
                return [(case, source, target) for case in cases]
            case Rep(part, low, high):
                self.graph.budget.states(max(low, high or 0))  # each repetition takes one at least
                return self._repeat(part, low, high, source, target)
            case OneOrMore(parts, between, again):
                return self._some(parts, between, again, source, target)
            case RuleCall(rule) if rule in self.numbers:
                self.graph.arc(source, CALLS + self.numbers[rule], CALLS + self.numbers[rule], target)
            case RuleCall(rule):
                return [(self.rules[rule], source, target)]
            case Counted() if tree in self.kinds:
                self.graph.arc(source, BYTE_SYMBOLS + self.kinds[tree], BYTE_SYMBOLS + self.kinds[tree], target)
            case Counted():
                self._trees[tree] = self._trees.get(tree) or unroll(tree)
                return [(self._trees[tree], source, target)]
            case Automaton(automaton):
                self._machine(automaton.moves, automaton.accepting, source, target)
        return ()

    def _chain(self, parts: Sequence[Tree], source: int, target: int) -> Legs:
        if not parts:
            self.graph.step(source, target)
            return []
        first = self.graph.states(len(parts) - 1)
        stops = [source, *range(first, first + len(parts) - 1), target]
        return list(zip(parts, stops, stops[1:], strict=False))

    def _repeat(self, part: Tree, low: int, high: int | None, source: int, target: int) -> Legs:
        """``low`` copies in a row; then a loop, or as many more, and after each one it may end."""
        copies = low if high is None else high
        if copies < low:
            return []
        first = self.graph.states(copies + (high is None))
        stops = [source, *range(first, first + copies)]
        for stop in stops[low:]:
            self.graph.step(stop, target)
        chain = list(zip([part] * copies, stops, stops[1:], strict=False))
        if high is not None:
            return chain
        loop = first + copies
        self.graph.step(stops[-1], loop)
        self.graph.step(loop, target)
        return [*chain, (part, loop, loop)]

    def _some(self, parts: Sequence[Tree], between: Tree, again: bool, source: int, target: int) -> Legs:
        """Each part begins at the source, or after a separator after any part before it."""
        starts = self.graph.states(2 * len(parts))
        later = starts + len(parts)  # later + i: part i was written, or one before it
        legs: list[tuple[Tree, int, int]] = []
        for place, part in enumerate(parts):
            self.graph.step(source, starts + place)
            self.graph.step(later + place, target if place == len(parts) - 1 else later + place + 1)
            legs.append((part, starts + place, later + place))
            if place:
                legs.append((between, later + place - 1, starts + place))
        if again:
            legs.append((between, later + len(parts) - 1, starts + len(parts) - 1))
        return legs

    def _machine(self, moves: IntArray, accepting: NDArray[np.bool_], source: int, target: int) -> None:
        if not len(moves):
            return
        if id(moves) not in self._runs:
            self._runs[id(moves)] = runs(moves)
        first = self.graph.copy(self._runs[id(moves)], len(moves))
        self.graph.step(source, first)
        for state in np.flatnonzero(accepting).tolist():
            self.graph.step(first + state, target)
