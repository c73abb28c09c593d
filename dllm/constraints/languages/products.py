"""Automata of automata: both of two languages, one without the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dllm.constraints.languages.arrays import ASIDE, Long, mixed_hashes, numbered_values
from dllm.constraints.languages.limits import budget
from dllm.constraints.languages.minimal import minimal_table
from dllm.constraints.languages.trees import BoolArray, ByteAutomaton, IntArray

KeepPair = Callable[[BoolArray, BoolArray], BoolArray]


def intersection(a: ByteAutomaton, b: ByteAutomaton) -> ByteAutomaton:
    """The words of both."""
    return product_automaton(a, b, np.logical_and)


def difference(a: ByteAutomaton, b: ByteAutomaton) -> ByteAutomaton:
    """The words of ``a`` that are none of ``b``."""
    return product_automaton(a, b, lambda in_a, in_b: in_a & ~in_b)


def product_automaton(a: ByteAutomaton, b: ByteAutomaton, keep: KeepPair) -> ByteAutomaton:
    """The words for which ``keep(in a, in b)`` holds; it must not hold for (False, False). Raises UserError."""
    first, number = numbered_values(_columns(a.moves, b.moves))
    left, right = _complete(a.moves[:, first]), _complete(b.moves[:, first])
    width = len(right)
    codes, moves = _pairs(left, right)
    in_a, in_b = np.append(a.accepting, False), np.append(b.accepting, False)
    moves, accepting = minimal_table(moves, keep(in_a[codes // width], in_b[codes % width]))
    budget().states(len(moves))
    return ByteAutomaton(moves[:, number], accepting)


def _columns(*tables: IntArray) -> Long:
    """[256] a hash of what each byte does in all tables."""
    hashes = np.zeros(256, np.uint64)
    for number, moves in enumerate(tables):
        weights = mixed_hashes(np.arange(len(moves)) + (number + 1) * ASIDE)[:, None]
        hashes += ((mixed_hashes(moves + 1) | np.uint64(1)) * weights).sum(axis=0, dtype=np.uint64)
    return hashes.astype(np.int64)


def _complete(moves: IntArray) -> Long:
    """With a last state that nothing leaves, to which all other bytes lead."""
    dead = len(moves)
    return np.append(np.where(moves < 0, dead, moves), np.full((1, moves.shape[1]), dead), axis=0).astype(np.int64)


def _pairs(left: Long, right: Long) -> tuple[Long, IntArray]:
    """The pairs of states reached from the first, level by level: their codes [S], and their moves [S, K]."""
    width, clock, start = len(right), budget(), 0
    codes, numbers = np.zeros(1, np.int64), {0: 0}
    rows: list[IntArray] = [np.empty((0, left.shape[1]), np.int32)]
    while start < len(codes):
        clock.unmerged(len(codes))
        front = codes[start:]
        start = len(codes)
        targets = left[front // width] * width + right[front % width]
        first, number = numbered_values(targets.reshape(-1))
        new = targets.reshape(-1)[first].tolist()
        ids = np.array([numbers.setdefault(code, len(numbers)) for code in new], np.int32)
        rows.append(ids[number].reshape(targets.shape))
        codes = np.append(codes, np.array(new, np.int64)[ids >= start])
    return codes, np.concatenate(rows)
