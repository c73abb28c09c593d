"""dus: dilated groups, the spacing halving every turn."""

from __future__ import annotations

import pytest

from dllm import UserError
from dllm.samplers.dus import DUS
from tests.samplers.game import Game


def test_the_spacing_halves_until_nothing_is_left() -> None:
    game = Game(DUS(), 8)
    assert [game.turn(0.5) for _ in range(3)] == [[0, 4], [2, 6], [1, 3, 5, 7]]


def test_another_base_and_a_length_that_is_no_power_of_it() -> None:
    game = Game(DUS(3), 10)
    assert [game.turn(0.5) for _ in range(3)] == [[0, 4, 8], [2, 6], [1, 3, 5, 7, 9]]  # spacings 4, 2, 1


def test_offsets_count_from_the_block() -> None:
    game = Game(DUS(), 8, block=4)
    assert [game.turn(0.5) for _ in range(4)] == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_a_group_that_is_filled_already_gives_way_to_the_best() -> None:
    game = Game(DUS(), 8)
    game.commit([0, 4])
    assert game.turn([0, 0.1, 0.3, 0.9, 0, 0.2, 0.2, 0.2]) == [3]
    assert game.turn(0.5) == [2, 6]


def test_base_one_is_refused() -> None:
    with pytest.raises(UserError, match=r"sampler\.base=1 must be at least 2"):
        DUS(1)
