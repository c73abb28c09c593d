"""Latin squares and 4 x 4 sudokus of suites r1 and r2."""

from __future__ import annotations

from random import Random
from string import ascii_uppercase, digits

from dllm.tasks.parallelbench.record import Record
from dllm.tasks.parallelbench.sudoku import GRIDS, solutions
from dllm.tasks.parallelbench.waiting_line import Make

SYMBOLS = tuple(ascii_uppercase + digits)
SIZE = 4


def latin_square(rng: Random) -> Record:
    """The benchmark's recipe draw by draw: with its seed this gives the released questions. The square that is made
    serves as the example; any square of the symbols is right."""
    symbols = rng.sample(SYMBOLS, SIZE)
    rows = [symbols[shift:] + symbols[:shift] for shift in range(SIZE)]
    rng.shuffle(rows)
    columns = list(zip(*rows, strict=True))
    rng.shuffle(columns)
    example = "\n".join(",".join(row) for row in zip(*columns, strict=True))
    return Record({"size": SIZE, "symbols": f"[{', '.join(symbols)}]"}, {"symbols": symbols, "example": example})


def sudoku(empty: int, field: str, blank: str) -> Make:
    """Makes puzzles with one solution and ``empty`` cells, which are shown as ``blank``."""

    def make(rng: Random) -> Record:
        while True:
            grid = rng.choice(GRIDS)
            holes = set(rng.sample(range(SIZE * SIZE), empty))
            puzzle = "".join("0" if cell in holes else digit for cell, digit in enumerate(grid))
            if len(solutions(puzzle)) == 1:
                return Record({"size": SIZE, field: lines(puzzle).replace("0", blank)}, lines(grid))

    return make


def lines(cells: str) -> str:
    return "\n".join(cells[at : at + SIZE] for at in range(0, SIZE * SIZE, SIZE))
