"""The edges of a token automaton: from state to state, whatever the token, each with the classes that take it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.intp]  # numpy looks up by other integers three times as slowly
NEVER = 1 << 40  # more tokens than any answer has


@dataclass(frozen=True, eq=False)
class Edges:
    """E edges, in order of their sources, and T moves along them, one for each class.

    source, target [E]. label [E]: the row of ``bits`` that holds the classes of an edge; edges with the same
    classes share it. bits [R, W] uint64: class c at bit c % 64 of word c // 64.
    moves: (source, class, target), each [T], in order of the targets.
    """

    source: IntArray
    target: IntArray
    label: IntArray
    bits: NDArray[np.uint64]
    moves: tuple[IntArray, IntArray, IntArray]

    @staticmethod
    def of(delta: NDArray[np.int32]) -> Edges:
        """The edges of ``delta`` [Q, C]."""
        (states, classes), words = delta.shape, -(-delta.shape[1] // 64)
        source, number = np.nonzero(delta >= 0)
        key = (source * states + delta[source, number]) * classes + number
        key.sort()
        edge, number = key // classes, key % classes
        new = _changes(edge)
        word, into = edge * words + number // 64, np.cumsum(new) - 1
        first = np.flatnonzero(_changes(word))
        bits = np.zeros((int(new.sum()), words), np.uint64)
        if len(key):
            one = np.left_shift(np.uint64(1), (number % 64).astype(np.uint64))
            bits[into[first], number[first] // 64] = np.bitwise_or.reduceat(one, first)
        by_target = np.argsort(edge % states, kind="stable")
        source, target = edge // states, edge % states
        moves = source[by_target], number[by_target], target[by_target]
        bits, label = np.unique(bits, axis=0, return_inverse=True)
        return Edges(source[new], target[new], label.reshape(-1), bits, moves)

    def distance(self, ends: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The fewest edges from each state to one of ``ends`` [Q bool]; NEVER where none leads there."""
        order = np.argsort(self.target, kind="stable")
        source, begin = self.source[order], np.searchsorted(self.target[order], np.arange(len(ends) + 1))
        found, steps = np.where(ends, 0, NEVER), 0
        last = np.flatnonzero(ends)
        while len(last):
            steps += 1
            before = np.unique(source[_spans(begin[last], begin[last + 1])])
            last = before[found[before] == NEVER]
            found[last] = steps
        return found


def _changes(values: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where a sorted list [n] has a new value."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


def _spans(begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers from each begin up to its end, one span after the other."""
    sizes = end - begin
    return np.repeat(begin - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))
