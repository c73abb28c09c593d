"""Characters as the bytes of UTF-8: code points to automata of one to four bytes. Surrogates are not characters."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from dllm.constraints.languages.arrays import ASIDE, Long, mixed_hashes, numbered_values
from dllm.constraints.languages.minimal import minimal_table
from dllm.constraints.languages.trees import Automaton, ByteAutomaton, Bytes, Cat, Tree

Ranges = tuple[tuple[int, int], ...]
LAST = 0x10FFFF
ALL_CHARACTERS: Ranges = ((0, 0xD7FF), (0xE000, LAST))
KEPT_RANGES = 1000  # of a class that is kept for the next pattern: it takes up to 1 MB; ``\\w`` has 770


def literal_text(text: str) -> Cat:
    """Exactly this text."""
    return Cat(tuple(Bytes(((byte, byte),)) for byte in text.encode("utf-8")))


def characters(ranges: Ranges) -> Tree:
    """One character with a code point in one of ``ranges``, each (first, last)."""
    return _characters(ranges) if len(ranges) <= KEPT_RANGES else _characters.__wrapped__(ranges)


@lru_cache(maxsize=64)
def _characters(ranges: Ranges) -> Tree:
    whole = merge_ranges(ranges)
    if not whole or whole[-1][1] < 0x80:
        return Bytes(whole)
    if len(whole) == 1 and whole[0][0] == whole[0][1]:
        return literal_text(chr(whole[0][0]))
    return Automaton(_automaton(whole))


@lru_cache(maxsize=1)
def every_character() -> str:
    """All code points in order, those of surrogates included."""
    return np.arange(LAST + 1, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


def matched_ranges(pattern: re.Pattern[str]) -> Ranges:
    """The code points that a pattern of runs matches."""
    return tuple((run.start(), run.end() - 1) for run in pattern.finditer(every_character()))


def merge_ranges(ranges: Ranges) -> Ranges:
    """The same code points in order and as few ranges as there can be, without surrogates."""
    out: list[tuple[int, int]] = []
    for first, last in sorted(part for whole in ranges for part in _around_surrogates(*whole)):
        if out and first <= out[-1][1] + 1:
            out[-1] = out[-1][0], max(last, out[-1][1])
        else:
            out.append((first, last))
    return tuple(out)


def complement(ranges: Ranges) -> Ranges:
    """All other characters."""
    whole = merge_ranges(ranges)
    firsts, lasts = [0, *(last + 1 for _, last in whole)], [*(first - 1 for first, _ in whole), LAST]
    return merge_ranges(tuple(zip(firsts, lasts, strict=True)))


def _around_surrogates(first: int, last: int) -> Ranges:
    parts = (first, min(last, 0xD7FF)), (max(first, 0xE000), last)
    return tuple(part for part in parts if part[0] <= part[1])


def _automaton(ranges: Ranges) -> ByteAutomaton:
    """Blocks of 64 code points, told apart by their last byte, in blocks again; equal ones are one state, 1 the end."""
    points = np.zeros(LAST + 1, bool)
    for first, last in ranges:
        points[first : last + 1] = True
    rows: list[Long] = [np.full((2, 256), -1)]
    distinct, number = numbered_values(np.packbits(points).view(np.uint64))
    ends = _blocks(np.where(points.reshape(-1, 64)[distinct], 1, -1), rows)[number]
    two, three, four = ends[:32], ends[:1024].copy(), np.append(ends, np.full(48 * 64, -1))
    three[:32], four[:1024] = -1, -1  # longer spellings of smaller code points
    rows[0][0, :0x80] = np.where(points[:0x80], 1, -1)
    rows[0][0, 0xC2:0xE0] = two[2:]
    rows[0][0, 0xE0:0xF0] = _blocks(three.reshape(16, 64), rows)
    rows[0][0, 0xF0:0xF5] = _blocks(_blocks(four.reshape(320, 64), rows).reshape(5, 64), rows)
    moves = np.concatenate(rows).astype(np.int32)
    return ByteAutomaton(*minimal_table(moves, np.arange(len(moves)) == 1))


def _blocks(tables: Long, rows: list[Long]) -> Long:
    """For each 64 states, to which 0x80 to 0xBF lead, the one state that does so, appended to ``rows``; -1 for none."""
    count = sum(map(len, rows))
    hashes = mixed_hashes(tables) * mixed_hashes(np.arange(64) + ASIDE)
    first, number = numbered_values(hashes.sum(axis=1, dtype=np.uint64))
    new = np.full((len(first), 256), -1)
    new[:, 0x80:0xC0] = tables[first]
    rows.append(new)
    return np.where((tables >= 0).any(axis=1), number + count, -1)
