"""Latin squares of four letters and of six or seven, and 4 x 4 sudoku."""

from __future__ import annotations

from dllm.tasks.mini import words
from dllm.tasks.mini.items import Draw, Make, Sample
from dllm.tasks.parallelbench.sudoku import GRIDS, solutions


def _latin(task: str, low: int, high: int) -> Make:
    """Rows are turns of the first one, in any order: of the many squares that are right, those that a small model can
    tell from a part of them."""

    def make(draw: Draw) -> Sample:
        size = draw.size(low, high)
        symbols = draw.rng.sample(words.SYMBOLS, size)
        first = draw.rng.sample(symbols, size)
        turns = draw.rng.sample(range(size), size)
        answer = "\n".join(",".join(first[turn:] + first[:turn]) for turn in turns)
        separator = "," if draw.plain else draw.rng.choice((",", ", ", " "))
        slots = {"items": separator.join(symbols)}
        return draw.sample(task, slots, answer, {"symbols": symbols}, "".join(sorted(symbols)), size)

    return make


def _sudoku(draw: Draw) -> Sample:
    while True:
        grid = draw.rng.choice(GRIDS)
        empty = set(draw.rng.sample(range(16), 4))
        puzzle = "".join("0" if i in empty else digit for i, digit in enumerate(grid))
        if len(solutions(puzzle)) == 1:
            break
    shown, solved = ("\n".join(cells[i : i + 4] for i in range(0, 16, 4)) for cells in (puzzle, grid))
    gap = "0" if draw.plain else draw.rng.choice("00._")
    return draw.sample("sudoku", {"items": shown.replace("0", gap)}, solved, {"solution": solved}, puzzle, 4)


TASKS: dict[str, Make] = {
    "latin_square": _latin("latin_square", 4, 4),
    "sudoku": _sudoku,
    "latin_square_large": _latin("latin_square_large", 6, 7),
}
