"""Moves that lead from every count of a state: into the same part with a larger count, or out of it to one place.

States are in a row, those that count once for each count. The counts of one state are the bits of one Python number,
so that all of them move by one shift.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import lshift, rshift

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]  # numpy looks up by other integers three times as slowly
PlaceBits = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Runs:
    """R runs, each by a token of class ``symbol``, in order of these."""

    first: Indices  # [J] where the places of each state that counts begin
    size: Indices  # [J] how many places each has
    source: Indices  # [R] the first place on both sides
    symbol: Indices  # [R] the class of its token
    target: Indices  # [R] the first place on both sides
    length: Indices  # [R] the places it has at the source
    adds: NDArray[np.bool_]  # [R] as many at the target, one for each, else all lead to the first

    def of(self, rows: Indices | slice) -> Runs:
        """Some of the runs."""
        source, symbol, target, length = (part[rows] for part in (self.source, self.symbol, self.target, self.length))
        return Runs(self.first, self.size, source, symbol, target, length, self.adds[rows])

    def by(self, symbol: int) -> Runs:
        """Those of one class of tokens."""
        if not len(self.source):
            return self
        if symbol not in self._by:
            self._by[symbol] = self.of(np.flatnonzero(self.symbol == symbol))
        return self._by[symbol]

    @cached_property
    def _by(self) -> dict[int, Runs]:
        return {}

    @cached_property
    def edges(self) -> tuple[Runs, list[Indices], list[int]]:
        """Each run once, for all tokens; the classes that take it, and a number for these, equal for equal ones."""
        if not len(self.source):
            return self, [], []
        rows = np.stack([self.source, self.target, self.length, self.adds], axis=1)
        _, samples, number = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(number.reshape(-1), kind="stable")
        classes = np.split(self.symbol[order], np.cumsum(np.bincount(number.reshape(-1)))[:-1])
        labels: dict[bytes, int] = {}
        return self.of(samples), classes, [labels.setdefault(each.tobytes(), len(labels)) for each in classes]

    def forward(self, members: PlaceBits, out: PlaceBits) -> None:
        """Add to ``out`` the places after a move from ``members``."""
        here, whole = _Counts(members, self), 0
        for home, goal, start, width in self._spreads:
            if here[home]:
                moved = _spread(here[home], width, lshift) << start & self._full[goal]
                whole |= moved << self._first[goal]
        for home, place, mask in self._exits:
            if here[home] & mask:
                out[place] = True
        _add(whole, out)

    def backward(self, members: PlaceBits, out: PlaceBits) -> None:
        """Add to ``out`` the places before a move to ``members``."""
        there, whole = _Counts(members, self), 0
        for home, goal, start, width in self._spreads:
            if there[goal]:
                whole |= _spread(there[goal] >> start, width, rshift) << self._first[home]
        for home, place, mask in self._exits:
            if members[place]:
                whole |= mask << self._first[home]
        _add(whole, out)

    def crossed(self, before: PlaceBits, behind: PlaceBits, labels: list[int]) -> list[int]:
        """For each label, a run that leads from ``before`` to ``behind``, if one does. labels [R]."""
        here, there, runs = _Counts(before, self), _Counts(behind, self), dict[int, int]()
        for number, (home, low, mask, goal, start) in enumerate(self._lines):
            if labels[number] in runs or not here[home]:
                continue
            if start < 0:
                crosses = behind[goal] and here[home] >> low & mask
            else:
                crosses = here[home] >> low & mask & there[goal] >> start
            if crosses:
                runs[labels[number]] = number
        return list(runs.values())

    def before(self, places: Indices, count: int) -> Indices:
        """The places, of ``count`` in all, from which a move leads to one of ``places``."""
        members, out = np.zeros((2, count), bool)
        members[places] = True
        self.edges[0].backward(members, out)
        return np.flatnonzero(out)

    def flat(self) -> tuple[Indices, Indices, Indices]:
        """Source, class and target of every single move."""
        owner = np.repeat(np.arange(len(self.length)), self.length)
        step = np.arange(len(owner)) - np.repeat(np.cumsum(self.length) - self.length, self.length)
        return self.source[owner] + step, self.symbol[owner], self.target[owner] + step * self.adds[owner]

    @cached_property
    def _lines(self) -> list[tuple[int, int, int, int, int]]:
        """For each run, the number of its state, its lowest count there, a bit for each count, and where it leads: the
        number of a state and the lowest count there, or a place and -1."""
        home = np.searchsorted(self.first, self.source, side="right") - 1
        goal = np.searchsorted(self.first, self.target, side="right") - 1
        lines = zip(
            home.tolist(),
            (self.source - self.first[home]).tolist(),
            self.length.tolist(),
            self.adds.tolist(),
            goal.tolist(),
            self.target.tolist(),
            strict=True,
        )
        return [
            (at, low, (1 << length) - 1, to, target - self._first[to])
            if adds
            else (at, low, (1 << length) - 1, target, -1)
            for at, low, length, adds, to, target in lines
        ]

    @cached_property
    def _spreads(self) -> list[tuple[int, int, int, int]]:
        """What all runs with ``adds`` from one state to another do at once: from each count to those ``start`` and more
        above it, ``width`` of them, as far as there are that many."""
        shifts: dict[tuple[int, int], list[int]] = {}
        for home, low, _, goal, start in self._lines:
            if start >= 0:
                shifts.setdefault((home, goal), []).append(start - low)
        return [(*pair, begin, width) for pair, each in shifts.items() for begin, width in _in_rows(sorted(set(each)))]

    @cached_property
    def _exits(self) -> list[tuple[int, int, int]]:
        """From one state to one place: the counts, as bits, from which some run leads there."""
        counts: dict[tuple[int, int], int] = {}
        for home, low, mask, place, start in self._lines:
            if start < 0:
                counts[home, place] = counts.get((home, place), 0) | mask << low
        return [(*pair, mask) for pair, mask in counts.items()]

    @cached_property
    def _first(self) -> list[int]:
        return self.first.tolist()

    @cached_property
    def _full(self) -> list[int]:
        """For each state that counts, a bit for each of its counts."""
        return [(1 << size) - 1 for size in self.size.tolist()]


class _Counts(dict[int, int]):
    """The counts among ``members`` of each state that counts, as bits; computed on demand."""

    def __init__(self, members: PlaceBits, runs: Runs) -> None:
        super().__init__()
        self._first, self._full = runs._first, runs._full
        self._whole = int.from_bytes(np.packbits(members, bitorder="little").tobytes(), "little")

    def __missing__(self, state: int) -> int:
        value = self[state] = self._whole >> self._first[state] & self._full[state]
        return value


def _add(bits: int, out: PlaceBits) -> None:
    data = np.frombuffer(bits.to_bytes(-(-len(out) // 8), "little"), np.uint8)
    out |= np.unpackbits(data, count=len(out), bitorder="little").view(bool)


def _in_rows(numbers: list[int]) -> list[tuple[int, int]]:
    """Rising numbers as rows of neighbours: the first of each, and how many there are."""
    begins = [at for at, number in enumerate(numbers) if at == 0 or number > numbers[at - 1] + 1]
    return [(numbers[at], end - at) for at, end in zip(begins, [*begins[1:], len(numbers)], strict=True)]


def _spread(bits: int, width: int, shift: Callable[[int, int], int]) -> int:
    """The bits, and those up to ``width`` - 1 above each, or below where ``shift`` goes right."""
    size = 1
    while size < width:
        step = min(size, width - size)
        bits, size = bits | shift(bits, step), size + step
    return bits
