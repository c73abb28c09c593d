"""The best filling of a row's masks: a recursion over cells and states.

It is the dynamic programme of DINGO (arXiv 2505.23061), over classes of tokens and over the whole row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dllm.constraints.languages.arrays import heads, spread_ranges
from dllm.constraints.runs import Indices
from dllm.constraints.sets import PlaceSet, TokenLanguage
from dllm.constraints.transitions import GAP_CELL, TAIL_CELL

CellSort = tuple[int, int]  # its symbol and its kind
Floats = NDArray[np.float64]
Maxima = tuple[Floats, Indices]  # the highest score of each class [C + 1], -inf: never; and an id that has it


@dataclass(frozen=True)
class Filling:
    """A filling of the masks that were scored."""

    ids: tuple[int, ...]  # of the masks that were scored, in order
    score: float  # the sum of theirs


@dataclass(frozen=True, eq=False)
class Moves:
    """All ways across a masked cell, in order of the targets."""

    source: Indices  # [T] the place before the cell
    symbol: Indices  # [T] the class of the token in the cell; C is the end of the text
    target: Indices  # [T] the place after the cell; Q is the end of the text
    first: Indices  # where each target's ways begin
    group: Indices  # [T] the number of each way's target

    @staticmethod
    def of(language: TokenLanguage, symbol: int, kind: int) -> Moves:
        """The ways across a cell of this symbol and kind."""
        source, number, target = language.tokens.flat
        if symbol != language.mask:
            source, number, target = (part[number == symbol] for part in (source, number, target))
        if symbol >= language.end:
            states, tail = language.tokens.places, kind == TAIL_CELL
            at = np.flatnonzero(language.transitions.ending) if tail else np.arange(states * (kind == GAP_CELL))
            source = np.append(source, at)
            number = np.append(number, np.full(len(at), language.end))
            target = np.append(target, np.full(len(at), states) if tail else at)
        order = np.argsort(target, kind="stable")
        source, number, target = source[order], number[order], target[order]
        first = heads(target)
        return Moves(source, number, target, first, spread_ranges(first, np.diff(first, append=len(target)))[1])


def best_filling(
    language: TokenLanguage, start: PlaceSet, cells: Sequence[CellSort], scored: Mapping[int, Maxima], behind: PlaceSet
) -> Filling | None:
    """The best ids for the ``scored`` cells, by their index, from ``start`` into ``behind``; other masks count 0. Ties
    go to the lowest id, then to the lowest state. None: nothing fits."""
    none = np.zeros(language.end + 1), np.arange(language.end + 1)
    value = np.where(start.members, 0.0, -np.inf)
    moves: dict[CellSort, Moves] = {}
    trace: list[tuple[Indices, Indices]] = []
    for at, cell in enumerate(cells):
        ways = moves[cell] = moves.get(cell) or Moves.of(language, *cell)
        best, ids = scored.get(at, none)
        value, back = _step(value, ways, best, ids)
        trace.append(back)
    value = np.where(behind.members, value, -np.inf)
    state = int(value.argmax())
    return None if value[state] == -np.inf else Filling(_follow(trace, state, scored), float(value[state]))


def _step(value: Floats, ways: Moves, best: Floats, ids: Indices) -> tuple[Floats, tuple[Indices, Indices]]:
    """The values [Q + 1] after a cell, and by state the id and the state before through which each is reached."""
    through = value[ways.source] + best[ways.symbol]
    after, token, source = np.full(len(value), -np.inf), np.zeros(len(value), np.int64), np.zeros(len(value), np.int64)
    if len(ways.first):
        highest = np.maximum.reduceat(through, ways.first)
        best_ways = np.flatnonzero((through == highest[ways.group]) & (through > -np.inf))
        best_ways = best_ways[
            np.lexsort((ways.source[best_ways], ids[ways.symbol[best_ways]], ways.target[best_ways]))[::-1]
        ]
        target = ways.target[best_ways]  # the last written is the first of the order
        after[target], token[target], source[target] = (
            through[best_ways],
            ids[ways.symbol[best_ways]],
            ways.source[best_ways],
        )
    return after, (token, source)


def _follow(trace: Sequence[tuple[Indices, Indices]], state: int, scored: Mapping[int, object]) -> tuple[int, ...]:
    ids = []
    for at in range(len(trace) - 1, -1, -1):
        token, source = trace[at]
        if at in scored:
            ids.append(int(token[state]))
        state = int(source[state])
    return tuple(ids[::-1])
