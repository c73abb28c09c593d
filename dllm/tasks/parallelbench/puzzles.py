"""Latin squares and 4 x 4 sudokus of suites r1 and r2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from string import ascii_uppercase, digits

from dllm.tasks.mini.word_lists import EVERYDAY, RARE
from dllm.tasks.parallelbench.record import Record
from dllm.tasks.parallelbench.sudoku import drawn_puzzle
from dllm.tasks.parallelbench.waiting_line import MakeRecord

SYMBOLS = tuple(ascii_uppercase + digits)
SIDE = 4


def make_latin_square(rng: Random) -> Record:
    """The benchmark's recipe draw by draw: with its seed it gives the released questions. The square made here is the
    example; every Latin square of the symbols is right."""
    symbols = rng.sample(SYMBOLS, SIDE)
    rows = [symbols[shift:] + symbols[:shift] for shift in range(SIDE)]
    rng.shuffle(rows)
    columns = list(zip(*rows, strict=True))
    rng.shuffle(columns)
    example = "\n".join(",".join(row) for row in zip(*columns, strict=True))
    return Record({"size": SIDE, "symbols": f"[{', '.join(symbols)}]"}, {"symbols": symbols, "example": example})


def sudoku_maker(empty: int, field: str, blank: str) -> MakeRecord:
    """Makes puzzles with one solution and ``empty`` cells, which are shown as ``blank``."""

    def make(rng: Random) -> Record:
        puzzle, grid = map(grid_lines, drawn_puzzle(rng, empty))
        return Record({"size": SIDE, field: puzzle.replace("0", blank)}, grid)

    return make


def grid_lines(cells: str) -> str:
    """A grid of 16 cells as four lines."""
    return "\n".join(cells[at : at + SIDE] for at in range(0, SIDE * SIDE, SIDE))


def words_maker(level: str, count: int) -> MakeRecord:
    """``level``: easy (words that go together), medium (common, unrelated) or hard (rare, unrelated fields)."""

    def make(rng: Random) -> Record:
        if level == "easy":
            words = rng.sample(rng.choice(list(EVERYDAY.values())), count)
        else:
            words = _unrelated_words(rng, EVERYDAY if level == "medium" else RARE, count)
        return Record({"words": spoken_list(words)}, {"words": words})

    return make


def _unrelated_words(rng: Random, themes: Mapping[str, Sequence[str]], count: int) -> list[str]:
    """A word from each of ``count`` themes, none twice (some words belong to two)."""
    while True:
        words = [rng.choice(themes[theme]) for theme in rng.sample(list(themes), count)]
        if len(set(words)) == count:
            return words


def spoken_list(words: Sequence[str]) -> str:
    """``dog, park, and throw``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])}, and {words[-1]}"
