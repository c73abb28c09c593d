"""How pairs of an effect move by one more byte: of plain states, and of states that count.

A pair says where a text leads from a state. Where states count, one pair stands for all counts that a text fits: the
origin with its lowest and highest count, and the target with what the text has counted there, either more than at the
origin or from 0 on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dllm.constraints.languages.arrays import Hashes, mixed_hashes
from dllm.constraints.languages.trees import COUNT_BITS, ByteAutomaton, Counters

Pairs = NDArray[np.signedinteger]
FIELD = (1 << COUNT_BITS) - 1


@dataclass(frozen=True, eq=False)
class PlainSteps:
    """Moves of an automaton that counts nothing."""

    moves: NDArray[np.int32]  # [S, K] by class of bytes (-1: nowhere)

    def all(self) -> tuple[Pairs, Pairs]:
        """The pairs of the empty text."""
        states = np.arange(len(self.moves), dtype=np.int32)
        return states, states

    def after(self, origins: Pairs, targets: Pairs, classes: Pairs) -> tuple[Pairs, Pairs]:
        """The pairs with one more byte; target -1: the text fits nowhere."""
        return origins, self.moves[targets, classes]

    def sums(self, origins: Pairs, targets: Pairs) -> Hashes:
        """What each pair adds to the number by which an effect is known."""
        return mixed_hashes((origins.astype(np.int64) << 32) + targets)


@dataclass(frozen=True, eq=False)
class CountedSteps:
    """The same of an automaton that counts."""

    moves: NDArray[np.int32]  # [S, K] by class of bytes (-1: nowhere)
    # [S, K] where a byte adds one. Both sides of a pair are one number, of fields of ``COUNT_BITS``: the origin's
    # state, lowest and highest count; the target's state, its count, and whether that adds to the origin's
    counts: NDArray[np.bool_]
    counters: Counters  # the bounds of what is counted

    def all(self) -> tuple[Pairs, Pairs]:
        states, counts = np.arange(len(self.moves), dtype=np.int64), self.counters.home >= 0
        high = self.counters.high.astype(np.int64)
        return states | high << 2 * COUNT_BITS, states | counts.astype(np.int64) << 2 * COUNT_BITS

    def after(self, origins: Pairs, targets: Pairs, classes: Pairs) -> tuple[Pairs, Pairs]:
        counters, low, high = self.counters, origins >> COUNT_BITS & FIELD, origins >> 2 * COUNT_BITS
        state, count, adds = targets & FIELD, targets >> COUNT_BITS & FIELD, targets >> 2 * COUNT_BITS > 0
        new = self.moves[state, classes].astype(np.int64)
        within = (counters.home[state] >= 0) & (counters.home[state] == counters.home[new]) & (new >= 0)
        leaves = (counters.home[state] >= 0) & ~within
        least, most = counters.low[state].astype(np.int64), counters.high[state].astype(np.int64)
        count = count + (within & self.counts[state, classes])
        high = np.where(within & adds, np.minimum(high, most - count), high)
        low = np.where(leaves & adds, np.maximum(low, least - count), low)
        fits = (new >= 0) & (low <= high) & ~(~adds & (within & (count > most) | leaves & (count < least)))
        count = np.where(within, count, 0)
        moved = new | count << COUNT_BITS | (within & adds).astype(np.int64) << 2 * COUNT_BITS
        return (origins & FIELD) | low << COUNT_BITS | high << 2 * COUNT_BITS, np.where(fits, moved, -1)

    def sums(self, origins: Pairs, targets: Pairs) -> Hashes:
        return mixed_hashes(mixed_hashes(origins) + targets.astype(np.uint64))


def steps_of(automaton: ByteAutomaton) -> tuple[PlainSteps | CountedSteps, NDArray[np.intp]]:
    """The steps of an automaton, and the class [256] of each byte: those of a class do the same everywhere."""
    counters = automaton.counters
    does = automaton.moves if counters is None else 2 * automaton.moves + counters.counts
    columns, classes = np.unique(does.T, axis=0, return_inverse=True)
    classes = classes.reshape(256)  # numpy 2.0 gave it another shape
    table = np.ascontiguousarray(columns.T)
    if counters is None:
        return PlainSteps(table), classes
    return CountedSteps(table >> 1, (table & 1).astype(bool), counters), classes


def counted_places(origins: Pairs, targets: Pairs, first: Pairs) -> tuple[Pairs, Pairs, Pairs, NDArray[np.bool_]]:
    """For pairs of ``CountedSteps``, the first place at the origin, how many there are, the first place at the target,
    and whether there are as many. first [S]: where the places of each state begin."""
    low, adds = origins >> COUNT_BITS & FIELD, targets >> 2 * COUNT_BITS > 0
    target = first[targets & FIELD] + (targets >> COUNT_BITS & FIELD) + low * adds
    return first[origins & FIELD] + low, (origins >> 2 * COUNT_BITS) - low + 1, target, adds
