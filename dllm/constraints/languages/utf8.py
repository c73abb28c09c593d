"""Characters as the bytes of UTF-8: code points to automata of one to four bytes. Surrogates are no characters."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dllm.constraints.languages.arrays import ASIDE, Long, mixed, numbered
from dllm.constraints.languages.minimal import minimised
from dllm.constraints.languages.trees import BoolArray, ByteAutomaton, Bytes, Cat, Machine, Tree

Ranges = tuple[tuple[int, int], ...]
LAST = 0x10FFFF
ALL: Ranges = ((0, 0xD7FF), (0xE000, LAST))


def literal(text: str) -> Cat:
    """Exactly this text."""
    return Cat(tuple(Bytes(((byte, byte),)) for byte in text.encode("utf-8")))


def characters(ranges: Ranges) -> Tree:
    """One character with a code point in one of ``ranges``, each (first, last)."""
    points = members(ranges)
    if not points[0x80:].any():
        return Bytes(joined(points[:0x80]))
    found = joined(points)
    if len(found) == 1 and found[0][0] == found[0][1]:
        return literal(chr(found[0][0]))
    return Machine(_automaton(found))


def members(ranges: Ranges) -> BoolArray:
    """[0x110000] the code points in ``ranges``, without surrogates."""
    points = np.zeros(LAST + 1, bool)
    for first, last in ranges:
        points[first : last + 1] = True
    points[0xD800:0xE000] = False
    return points


def joined(points: BoolArray) -> Ranges:
    """The longest ranges that hold exactly these members."""
    steps = np.flatnonzero(np.diff(np.concatenate(([False], points, [False])).astype(np.int8))).tolist()
    return tuple((first, behind - 1) for first, behind in zip(steps[::2], steps[1::2], strict=True))


@lru_cache(maxsize=256)
def _automaton(ranges: Ranges) -> ByteAutomaton:
    """Code points lie in blocks of 64, which their last byte tells apart, and those in blocks again. Equal blocks are
    one state; state 1 is the end."""
    points = members(ranges)
    rows: list[Long] = [np.full((2, 256), -1)]
    rows[0][0, :0x80] = np.where(points[:0x80], 1, -1)
    low = 0x80
    for lead, leads, trailing in ((0xC0, 32, 1), (0xE0, 16, 2), (0xF0, 8, 3)):
        states = np.full(leads * 64**trailing, -1)  # longer spellings of smaller code points stay out
        held = points[: len(states)]
        states[low : len(held)][held[low:]] = 1
        low = len(states)
        for _ in range(trailing):
            states = _blocks(states, rows)
        rows[0][0, lead : lead + leads] = states
    moves = np.concatenate(rows).astype(np.int32)
    return ByteAutomaton(*minimised(moves, np.arange(len(moves)) == 1))


def _blocks(states: Long, rows: list[Long]) -> Long:
    """For each 64 states, to which 0x80 to 0xBF lead, the one state that does so, appended to ``rows``; -1 for none."""
    tables = states.reshape(-1, 64)
    count = sum(map(len, rows))
    first, number = numbered((mixed(tables) * mixed(np.arange(64) + ASIDE)).sum(axis=1, dtype=np.uint64))
    new = np.full((len(first), 256), -1)
    new[:, 0x80:0xC0] = tables[first]
    rows.append(new)
    return np.where((tables >= 0).any(axis=1), number + count, -1)


@lru_cache(maxsize=1)
def texts() -> ByteAutomaton:
    """Every text: any characters, also none."""
    one = _automaton(ALL)
    moves = np.where(one.moves == np.flatnonzero(one.accepting)[0], 0, one.moves)
    return ByteAutomaton(*minimised(moves.astype(np.int32), np.arange(len(moves)) == 0))
