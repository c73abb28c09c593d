"""One row under a constraint: what fits its cells, with the exact number of masks.

A cell is an id, or MASK. Sets are kept from both sides: those from the left are renewed after the first changed cell,
those from the right before the last, on demand. Where only a block is open, that is within the block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import numpy as np
from numpy.typing import ArrayLike

from dllm.constraints.filling import Filling, Maxima, best_filling
from dllm.constraints.sets import ClassSet, PlaceSet, TokenLanguage
from dllm.constraints.transitions import GAP_CELL, TAIL_CELL, TEXT_CELL


class RowSets:
    """The cells of a row, from the first of its text to the last that may be decided, and the sets around them."""

    _symbols: list[int]
    kinds: list[int]  # what an end id does in each cell; never changed in place: copies share them
    _last: int  # the last cell that is not masked, -1: none
    _epoch: int  # of the memo that the sets are from
    # ``_ahead`` holds the sets before cells 0 to ``_known``; ``_behind`` those before ``_since`` and on, as far as they
    # follow from no closed form.
    _ahead: list[PlaceSet]
    _behind: list[PlaceSet]
    _known: int
    _since: int

    def __init__(
        self, language: TokenLanguage, cells: ArrayLike, gaps: int = 0, begun: bytes = b"", least: int = 0
    ) -> None:
        """cells [n]: ids and MASK. gaps: in infilling the index of the last given cell, before which an end id writes
        nothing and text goes on. begun: the answer's beginning that is before the cells. least: that many first
        cells hold text and no end."""
        self.language, self.gaps, self.prefix, self.least = language, gaps, begun, least
        self.cells = np.array(cells, np.int64)
        self._fill()

    def copy(self) -> RowSets:
        """A row that changes apart from this one: another candidate."""
        other = copy(self)
        other.cells, other._symbols = self.cells.copy(), self._symbols.copy()
        other._ahead, other._behind = self._ahead.copy(), self._behind.copy()
        return other

    def set_cells(self, cells: ArrayLike) -> None:
        """Take other cells [n]: commits, remasks, and, with another n, another end of the row."""
        new = np.asarray(cells, np.int64)
        if len(new) == len(self.cells):
            changed = np.flatnonzero(new != self.cells)
            self.write(changed.tolist(), new[changed].tolist())
        else:
            self.cells = new.copy()
            self._fill()

    def write(self, positions: Sequence[int], ids: Sequence[int]) -> None:
        """Commit ``ids`` at ``positions``, or remask where the id is MASK."""
        for at, number in zip(positions, ids, strict=True):
            self.cells[at], self._symbols[at] = number, self.language.symbol(number)
            self._known, self._since = min(self._known, at), max(self._since, at + 1)
            self._last = max(self._last, at)
        self._find_last()

    def feasible(self) -> bool:
        """Whether ids for all masks make the row a text of the language."""
        self._renew()
        return self.language.intersects(self._forward(self._known), self._backward(self._known))

    def allowed(self, positions: Sequence[int]) -> list[ClassSet]:
        """What fits each of these masked cells by itself: exact for one cell at a time."""
        if not len(positions):
            return []
        self._renew()
        self._forward(max(positions))
        self._backward(min(positions) + 1)
        ahead, behind, closed, kinds = self._ahead, self._behind, self._closed(), self.kinds
        fitting, within, cells = self.language.allowed_classes, self.language.reach_end_within, len(self.cells)
        return [
            fitting(ahead[at], behind[at + 1] if at + 1 < closed else within(cells - at - 1), kinds[at])
            for at in positions
        ]

    def admit(self, positions: Sequence[int], ids: Sequence[int]) -> list[bool]:
        """Greedily, in the order given: which go together with those admitted before them."""
        self._renew()
        symbols, fits, at = [self.language.symbol(number) for number in ids], [False] * len(ids), 0
        joined: dict[int, int] = {}
        while at < len(ids):
            count = self._joinable(joined, positions[at:], symbols[at:])
            fits[at : at + count] = [True] * count
            joined |= zip(positions[at : at + count], symbols[at : at + count], strict=True)
            at += count + 1
        return fits

    def best_of(self, positions: Sequence[int], scores: Sequence[Maxima]) -> Filling | None:
        """The ids with the largest sum of scores, one for each of the masked ``positions`` in rising order, that go
        together; other masks count 0. scores: the highest of each class. None: nothing fits."""
        self._renew()
        span = range(positions[0], positions[-1] + 1) if len(positions) else range(0)
        first, behind = (span.start, span.stop) if span else (self._known, self._known)
        cells = [(self._symbols[at], self.kinds[at]) for at in span]
        scored = {at - span.start: score for at, score in zip(positions, scores, strict=True)}
        return best_filling(self.language, self._forward(first), cells, scored, self._backward(behind))

    def _fill(self) -> None:
        count = len(self.cells)
        gaps = min(self.gaps, count) if self.language.ends else 0
        self.kinds = [GAP_CELL] * gaps + [TAIL_CELL if self.language.ends else TEXT_CELL] * (count - gaps)
        self.kinds[: self.least] = [TEXT_CELL] * min(self.least, count)
        self._symbols = [self.language.symbol(number) for number in self.cells.tolist()]
        self._last = count - 1
        self._find_last()
        self._forget()

    def _forget(self) -> None:
        self._epoch = self.language.evict()
        self._known = 0
        self._since = len(self.cells)
        self._ahead = [self.language.start(self.prefix)] * (len(self.cells) + 1)
        self._behind = [self.language.reach_end_within(0)] * (len(self.cells) + 1)

    def _find_last(self) -> None:
        """The last cell that is not masked, at or before ``_last``."""
        while self._last >= 0 and self._symbols[self._last] == self.language.mask:
            self._last -= 1

    def _renew(self) -> None:
        """Look the sets up again where the memo has been cleared."""
        if self._epoch != self.language.evict():
            self._forget()

    def _forward(self, at: int) -> PlaceSet:
        """The states that the text may be in before cell ``at``."""
        after, ahead, symbols, kinds = self.language.after, self._ahead, self._symbols, self.kinds
        for cell in range(self._known, at):
            ahead[cell + 1] = after(ahead[cell], symbols[cell], kinds[cell])
        self._known = max(self._known, at)
        return ahead[at]

    def _backward(self, at: int) -> PlaceSet:
        """The states before cell ``at`` from which the text can be completed."""
        closed = self._closed()
        if at >= closed:
            return self.language.reach_end_within(len(self.cells) - at)
        if self._since >= closed:
            self._since, self._behind[closed] = closed, self.language.reach_end_within(len(self.cells) - closed)
        before, behind, symbols, kinds = self.language.before, self._behind, self._symbols, self.kinds
        for cell in range(self._since - 1, at - 1, -1):
            behind[cell] = before(behind[cell + 1], symbols[cell], kinds[cell])
        self._since = min(self._since, at)
        return behind[at]

    def _closed(self) -> int:
        """The cell from which on the sets from the right follow from the number of cells alone."""
        open_ = max(self._last + 1, self.gaps, min(self.least, len(self.cells)))
        return open_ if self.language.ends else len(self.cells)

    def _goes(self, symbols: Mapping[int, int]) -> bool:
        """Whether the row has a filling with these symbols written in."""
        if not symbols:
            return self.language.intersects(self._forward(self._known), self._backward(self._known))
        first, last = min(symbols), max(symbols)
        states, after, kinds = self._forward(first), self.language.after, self.kinds
        for at in range(first, last + 1):
            states = after(states, symbols.get(at, self._symbols[at]), kinds[at])
        return self.language.intersects(states, self._backward(last + 1))

    def _joinable(self, joined: Mapping[int, int], positions: Sequence[int], symbols: Sequence[int]) -> int:
        """How many of the first go together with what is ``joined``. What goes together does so in part, too."""
        low, high, count = 0, len(positions), len(positions)
        while low < high:
            if self._goes({**joined, **dict(zip(positions[:count], symbols[:count], strict=True))}):
                low = count
            else:
                high = count - 1
            count = (low + high + 1) // 2
        return low
