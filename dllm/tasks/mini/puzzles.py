"""Latin squares of four letters, and 4 x 4 sudoku."""

from __future__ import annotations

from dllm.tasks.mini.items import Draw, Make, Sample
from dllm.tasks.mini.word_lists import MINI_SYMBOLS
from dllm.tasks.parallelbench.puzzles import grid_lines
from dllm.tasks.parallelbench.sudoku import drawn_puzzle


def _latin(draw: Draw) -> Sample:
    """Rows are turns of the first one, in any order: of the many squares that are right, those that a small model can
    tell from a part of them."""
    size = 4
    symbols = draw.rng.sample(MINI_SYMBOLS, size)
    first = draw.rng.sample(symbols, size)
    turns = draw.rng.sample(range(size), size)
    answer = "\n".join(",".join(first[turn:] + first[:turn]) for turn in turns)
    separator = "," if draw.plain else draw.rng.choice((",", ", ", " "))
    slots = {"items": separator.join(symbols)}
    return draw.sample("latin_square", slots, answer, {"symbols": symbols}, "".join(sorted(symbols)), size)


def _sudoku(draw: Draw) -> Sample:
    puzzle, grid = drawn_puzzle(draw.rng, 4)
    text, solution = map(grid_lines, (puzzle, grid))
    gap = "0" if draw.plain else draw.rng.choice("00._")
    return draw.sample("sudoku", {"items": text.replace("0", gap)}, solution, {"solution": solution}, puzzle, 4)


TASKS: dict[str, Make] = {"latin_square": _latin, "sudoku": _sudoku}
