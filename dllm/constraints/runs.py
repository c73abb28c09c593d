"""Moves that lead from every count of a state: into the same part with so much more, or out of it to one place.

States stand in a row, those that count once for each count. The counts of one state are the bits of one Python number,
so that all of them move by one shift.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]  # numpy looks up by other integers three times as slowly
PlaceBits = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Runs:
    """R runs, each by a token of class ``symbol``, in order of these. first, size [J]: where the places of each state
    that counts begin, and how many there are. source, target [R]: the first place on both sides; length [R]: the places
    it has at the source; adds [R]: as many at the target, one for each, else all lead to the first.
    """

    first: Indices
    size: Indices
    source: Indices
    symbol: Indices
    target: Indices
    length: Indices
    adds: NDArray[np.bool_]

    def of(self, rows: Indices | slice) -> Runs:
        """Some of the runs."""
        source, symbol, target, length = (part[rows] for part in (self.source, self.symbol, self.target, self.length))
        return Runs(self.first, self.size, source, symbol, target, length, self.adds[rows])

    def by(self, symbol: int) -> Runs:
        """Those of one class of tokens."""
        if symbol not in self._by:
            self._by[symbol] = self.of(np.flatnonzero(self.symbol == symbol))
        return self._by[symbol]

    @cached_property
    def _by(self) -> dict[int, Runs]:
        return {}

    @cached_property
    def edges(self) -> tuple[Runs, list[Indices], list[int]]:
        """Each run once, whatever the token; the classes that take it, and a number for these, equal for equal ones."""
        if not len(self.source):
            return self, [], []
        rows = np.stack([self.source, self.target, self.length, self.adds], axis=1)
        _, shown, number = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(number.reshape(-1), kind="stable")
        classes = np.split(self.symbol[order], np.cumsum(np.bincount(number.reshape(-1)))[:-1])
        labels: dict[bytes, int] = {}
        return self.of(shown), classes, [labels.setdefault(each.tobytes(), len(labels)) for each in classes]

    def forward(self, members: PlaceBits, found: PlaceBits) -> None:
        """Add to ``found`` the places behind a move from ``members``."""
        here, there = self._numbers(members), dict[int, int]()
        for home, shift, mask, target, start in self._told:
            moved = here[home] >> shift & mask
            if moved and start < 0:
                found[target] = True
            elif moved:
                there[target] = there.get(target, 0) | moved << start
        self._write(there, found)

    def backward(self, members: PlaceBits, found: PlaceBits) -> None:
        """Add to ``found`` the places before a move to ``members``."""
        there, here = self._numbers(members), dict[int, int]()
        for home, shift, mask, target, start in self._told:
            moved = (mask if members[target] else 0) if start < 0 else there[target] >> start & mask
            if moved:
                here[home] = here.get(home, 0) | moved << shift
        self._write(here, found)

    def crossed(self, before: PlaceBits, behind: PlaceBits) -> Iterator[int]:
        """The numbers of runs that lead from ``before`` to ``behind``."""
        here, there = self._numbers(before), self._numbers(behind)
        for number, (home, shift, mask, target, start) in enumerate(self._told):
            if here[home] and (behind[target] if start < 0 else there[target]):
                moved = here[home] >> shift & mask
                if moved and (start < 0 or moved & there[target] >> start):
                    yield number

    def before(self, places: Indices, count: int) -> Indices:
        """The places, of ``count`` in all, from which a move leads to one of ``places``."""
        members, found = np.zeros((2, count), bool)
        members[places] = True
        self.edges[0].backward(members, found)
        return np.flatnonzero(found)

    def flat(self) -> tuple[Indices, Indices, Indices]:
        """Source, class and target of every single move."""
        owner = np.repeat(np.arange(len(self.length)), self.length)
        step = np.arange(len(owner)) - np.repeat(np.cumsum(self.length) - self.length, self.length)
        return self.source[owner] + step, self.symbol[owner], self.target[owner] + step * self.adds[owner]

    @cached_property
    def _told(self) -> list[tuple[int, int, int, int, int]]:
        """Of each run the number of its state, its lowest count there, a bit for each count, and where it leads: the
        number of a state and the lowest count there, or a place and -1."""
        home = np.searchsorted(self.first, self.source, side="right") - 1
        goal = np.searchsorted(self.first, self.target, side="right") - 1
        told = zip(home.tolist(), (self.source - self.first[home]).tolist(), self.length.tolist(), self.adds.tolist(),
                   goal.tolist(), self.target.tolist(), strict=True)  # fmt: skip
        first = self.first.tolist()
        return [
            (at, low, (1 << length) - 1, to, target - first[to]) if adds else (at, low, (1 << length) - 1, target, -1)
            for at, low, length, adds, to, target in told
        ]

    def _numbers(self, members: PlaceBits) -> _Numbers:
        return _Numbers(members, self.first, self.size)

    def _write(self, counts: dict[int, int], found: PlaceBits) -> None:
        for state, bits in counts.items():
            first, size = int(self.first[state]), int(self.size[state])
            data = np.frombuffer(bits.to_bytes(-(-size // 8), "little"), np.uint8)
            found[first : first + size] |= np.unpackbits(data, count=size, bitorder="little").view(bool)


class _Numbers(dict[int, int]):
    """Of each state that counts its counts among ``members``, as bits; found once somebody asks."""

    def __init__(self, members: PlaceBits, first: Indices, size: Indices) -> None:
        super().__init__()
        self._members, self._first, self._size = members, first, size

    def __missing__(self, state: int) -> int:
        first, size = int(self._first[state]), int(self._size[state])
        data = np.packbits(self._members[first : first + size], bitorder="little").tobytes()
        found = self[state] = int.from_bytes(data, "little")
        return found
