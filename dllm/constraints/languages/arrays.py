"""Small operations on arrays of numbers, for making automata."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Long = NDArray[np.int64]
Hashes = NDArray[np.uint64]


# Added to one factor of a product of hashes: products commute, and (symbol 0, block 1) is not (symbol 1, block 0).
ASIDE = 1 << 40


def mixed_hashes(numbers: NDArray[np.generic]) -> Hashes:
    """A 64-bit hash of each number (splitmix64); sums of them tell sets apart, as random weights would."""
    x = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def pointers(owners: NDArray[np.generic], count: int) -> Long:
    """[count + 1]: where the entries of each owner begin, of entries sorted by owner."""
    return np.searchsorted(owners, np.arange(count + 1)).astype(np.int64)


def spread_ranges(begins: Long, lengths: Long) -> tuple[Long, Long]:
    """The indices begins[i] to begins[i] + lengths[i] - 1 of all i in a row, and of each the i it comes from."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    ends = np.cumsum(lengths)
    return np.arange(len(owner)) + (begins - (ends - lengths))[owner], owner


def heads(values: NDArray[np.generic]) -> Long:
    """Where a new value begins, of values in order."""
    return np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1]))[: len(values)])


def sums(owners: NDArray[np.generic], values: Hashes) -> tuple[NDArray[np.generic], Hashes]:
    """Each owner once, in order, and the sum of its values."""
    order = np.argsort(owners, kind="stable")
    keys = owners[order]
    begins = heads(keys)
    return keys[begins], np.add.reduceat(values[order], begins) if len(begins) else values[:0]


def distances(ends: NDArray[np.bool_], before: Callable[[Long], Long]) -> Long:
    """[S] the fewest steps from each state to one of ``ends``; -1: none lead there. before: whence one step leads to
    some states."""
    fewest, front, steps = np.where(ends, 0, -1), np.flatnonzero(ends), 0
    while len(front):
        sources, steps = before(front), steps + 1
        front = np.unique(sources[fewest[sources] < 0])
        fewest[front] = steps
    return fewest


def numbered_values(values: NDArray[np.generic]) -> tuple[Long, Long]:
    """Values numbered in the order in which they first occur: where each first occurs, and the number of each."""
    _, first, number = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(first), np.int64)
    rank[order] = np.arange(len(first))
    return first[order].astype(np.int64), rank[number.reshape(-1)]
