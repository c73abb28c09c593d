"""static: so many per forward, the best-scoring first."""

from __future__ import annotations

from typing import Any

import pytest

from dllm.parts import Static
from tests.samplers.game import Game

STEADY = [0.3, 0.9, 0.5, 0.7, 0.6]
CASES: list[tuple[str, dict[str, Any], list[int]]] = [
    ("low_confidence", {}, [1]),
    ("margin", {"first": STEADY, "second": [0.0, 0.85, 0.1, 0.6, 0.5]}, [2]),  # 0.3, 0.05, 0.4, 0.1, 0.1
    ("entropy", {"entropy": [0.4, 0.5, 0.6, 0.1, 0.3]}, [3]),
]


@pytest.mark.parametrize(("score", "statistics", "first"), CASES, ids=[case[0] for case in CASES])
def test_the_best_by_each_score_comes_first(score: str, statistics: dict[str, Any], first: list[int]) -> None:
    assert Game(Static(score=score), 5).turn(STEADY, **statistics) == first


def test_the_margin_is_the_distributions_whatever_was_drawn() -> None:
    assert Game(Static(score="margin"), 2).turn([0.1, 0.5], first=[0.9, 0.5], second=[0.1, 0.4]) == [0]


def test_random_draws_an_order_that_only_the_seed_decides() -> None:
    def order(rows: int) -> list[list[int]]:
        game = Game(Static(score="random"), 6, rows=rows)
        turns = [game.play(0.5) for _ in range(6)]
        return [[turn[row][0] for turn in turns] for row in range(rows)]

    one, three = order(1), order(3)
    assert three[0] == one[0] and three[1] != three[0]
    assert all(sorted(row) == list(range(6)) for row in three)


def test_masks_are_split_over_the_steps_the_first_taking_one_more() -> None:
    game = Game(Static(steps=3), 8)
    counts = [len(game.turn([0.1 * at for at in range(8)])) for _ in range(3)]
    assert counts == [3, 3, 2]


def test_each_block_gets_its_share_of_the_steps() -> None:
    game = Game(Static(steps=4), 8, block=4)
    turns = [game.turn([0.9, 0.8, 0.7, 0.6, 0.5, 0.6, 0.7, 0.8]) for _ in range(4)]
    assert turns == [[0, 1], [2, 3], [6, 7], [4, 5]]


def test_no_single_position_is_called_forced() -> None:
    game = Game(Static(), 3)
    game.turn([0.1, 0.2, 0.3])
    assert game.step.accepted is None


def test_so_many_a_step_and_the_rest_in_the_last() -> None:
    game = Game(Static(per_step=3), 7)
    assert [len(game.turn([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3])) for _ in range(3)] == [3, 3, 1]
