"""4 x 4 sudoku grids as strings of 16 digits, row by row, 0 for an empty cell."""

from __future__ import annotations

from random import Random


def _peers(cell: int) -> frozenset[int]:
    row, column = divmod(cell, 4)
    same = {c for c in range(16) if c // 4 == row or c % 4 == column}
    box = {c for c in range(16) if c // 8 == row // 2 and c % 4 // 2 == column // 2}
    return frozenset((same | box) - {cell})


PEERS = tuple(_peers(cell) for cell in range(16))


def solutions(puzzle: str) -> list[str]:
    """All completed grids of a puzzle."""
    cell = puzzle.find("0")
    if cell < 0:
        return [puzzle]
    digits = {puzzle[peer] for peer in PEERS[cell]}
    choices = [digit for digit in "1234" if digit not in digits]
    return [grid for digit in choices for grid in solutions(puzzle[:cell] + digit + puzzle[cell + 1 :])]


GRIDS = tuple(solutions("0" * 16))


def drawn_puzzle(rng: Random, empty: int) -> tuple[str, str]:
    """A puzzle with one solution and ``empty`` cells, and that solution."""
    while True:
        grid = rng.choice(GRIDS)
        holes = set(rng.sample(range(16), empty))
        puzzle = "".join("0" if cell in holes else digit for cell, digit in enumerate(grid))
        if len(solutions(puzzle)) == 1:
            return puzzle, grid
