"""Latin squares and 4 x 4 sudokus of suites r1 and r2."""

from __future__ import annotations

from random import Random
from string import ascii_uppercase, digits

from dllm.tasks.parallelbench.record import Record
from dllm.tasks.parallelbench.sudoku import GRIDS, solutions
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
        while True:
            grid = rng.choice(GRIDS)
            holes = set(rng.sample(range(SIDE * SIDE), empty))
            puzzle = "".join("0" if cell in holes else digit for cell, digit in enumerate(grid))
            if len(solutions(puzzle)) == 1:
                return Record({"size": SIDE, field: grid_lines(puzzle).replace("0", blank)}, grid_lines(grid))

    return make


def grid_lines(cells: str) -> str:
    """A grid of 16 cells as four lines."""
    return "\n".join(cells[at : at + SIDE] for at in range(0, SIDE * SIDE, SIDE))
