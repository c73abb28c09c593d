"""order: positions in an order known in advance."""

from __future__ import annotations

from dllm.parts import Order
from tests.samplers.game import Game, positions


def test_left_to_right_and_a_given_order() -> None:
    game = Game(Order("left_to_right"), 4)
    assert [game.turn(0.5) for _ in range(4)] == [[0], [1], [2], [3]]
    game = Game(Order([3, 0, 2, 1]), 4)
    assert [game.turn(0.5) for _ in range(4)] == [[3], [0], [2], [1]]


def test_a_given_order_waits_for_its_block() -> None:
    game = Game(Order([3, 0, 2, 1]), 4, block=2)
    assert [game.turn(0.5) for _ in range(4)] == [[0], [1], [3], [2]]


def test_what_comes_next_is_announced() -> None:
    game = Game(Order("random", steps=3), 7, rows=2)
    next_positions: list[list[int]] = []
    for _ in range(3):
        now = game.play(0.5)
        assert not next_positions or now == next_positions
        next_positions = positions(game.step.next_positions)
    assert next_positions == [[], []]


def test_the_random_order_follows_the_seed() -> None:
    def order(rows: int) -> list[list[int]]:
        game = Game(Order(), 5, rows=rows)
        turns = [game.play(0.5) for _ in range(5)]
        return [[turn[row][0] for turn in turns] for row in range(rows)]

    assert order(3)[0] == order(1)[0] and order(3)[1] != order(3)[2]
