"""dus: dilated groups, the spacing halving every turn."""

from __future__ import annotations

import pytest
import torch

from dllm.parts import DUS
from tests.samplers.game import Game


def test_the_spacing_halves_until_nothing_is_left() -> None:
    game = Game(DUS(levels="dilated"), 8)
    assert [game.turn(0.5) for _ in range(3)] == [[0, 4], [2, 6], [1, 3, 5, 7]]


def by_hand(length: int, base: int, skip: int) -> list[list[int]]:
    """The published dilated_unmask_levels, as its paper words it: strides of floors, then the merge."""
    levels, stride, seen = list[list[int]](), length // base**skip, set[int]()
    while stride >= 1:
        new = [at for at in range(0, length, stride) if at not in seen]
        seen |= set(new)
        levels += [new] if new else []
        stride //= base
    rest = [at for at in range(length) if at not in seen]
    levels += [rest] if rest else []
    if len(levels) > 1 and len(levels[-1]) < len(levels[-2]):
        levels[-2:] = [sorted(levels[-2] + levels[-1])]
    return levels


@pytest.mark.parametrize(("base", "skip"), [(2, 1), (3, 1), (5, 1), (2, 2), (3, 2)])
def test_levels_are_strides_of_floors_and_a_small_last_one_joins_the_one_before(base: int, skip: int) -> None:
    table = DUS(base, skip, "dilated").table(40, torch.device("cpu"))
    for length in range(1, 41):
        level = table[length, :length].tolist()
        found = [[at for at in range(length) if level[at] == one] for one in range(max(level) + 1)]
        assert found == by_hand(length, base, skip)


def test_the_binary_order_takes_the_middle_of_every_gap() -> None:
    game = Game(DUS(levels="binary"), 8)
    assert [game.turn(0.5) for _ in range(3)] == [[3], [1, 5], [0, 2, 4, 6, 7]]


def test_a_doubtful_column_waits_for_the_last_level() -> None:
    game = Game(DUS(levels="dilated", threshold=0.6), 8)
    confidence = [0.5, 0.9, 0.9, 0.2, 0.9, 0.9, 0.9, 0.1]
    assert [game.turn(confidence) for _ in range(3)] == [[4], [2, 6], [0, 1, 3, 5, 7]]


def test_offsets_count_from_the_block() -> None:
    game = Game(DUS(levels="dilated"), 8, block=4)
    assert [game.turn(0.5) for _ in range(4)] == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_a_group_that_is_filled_already_gives_way_to_the_best() -> None:
    game = Game(DUS(levels="dilated"), 8)
    game.commit([0, 4])
    assert game.turn([0, 0.1, 0.3, 0.9, 0, 0.2, 0.2, 0.2]) == [3]
    assert game.turn(0.5) == [2, 6]
