"""entropy_distance: entropy, and a price for every column away from the text."""

from __future__ import annotations

import torch

from dllm.parts import DParallel, EntropyDistance
from tests.samplers.game import PROMPT, Game, positions


def turn(game: Game, entropy: list[float]) -> list[int]:
    return game.turn(0.5, entropy=entropy)


def test_the_price_counts_columns_from_the_leftmost_open_one() -> None:
    game = Game(EntropyDistance(0.4, 0.1), 6)
    # Costs: 0.3, 0.3, 0.5, 0.3, 0.4 (not below the bar), 0.5.
    assert turn(game, [0.3, 0.2, 0.3, 0.0, 0.0, 0.0]) == [0, 1, 3] and game.accepted == [0, 1, 3]
    # From column 2 on: 0.3, 0.2, 0.3. What is committed in between still counts as a column.
    assert turn(game, [9.0, 9.0, 0.3, 9.0, 0.0, 0.0]) == [2, 4, 5]


def test_the_cheapest_is_forced_and_ties_go_to_the_left() -> None:
    game = Game(EntropyDistance(0.1, 0.25), 3)
    assert turn(game, [1.0, 0.5, 0.25]) == [1] and game.accepted == []  # 1, 0.75, 0.75


def test_a_certain_position_waits_until_the_text_is_near() -> None:
    """threshold / penalty = 3 columns, strictly: an end of certain padding is committed three at a time."""
    game = Game(EntropyDistance(0.375, 0.125), 7)
    assert [turn(game, [0.0] * 7) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6]]


def test_at_threshold_0_it_takes_one_position_a_forward() -> None:
    game = Game(EntropyDistance(0.0, 0.02), 3)
    assert [turn(game, [0.01, 0.0, 0.0]) for _ in range(3)] == [[0], [1], [2]]  # 0.01, 0.02, 0.04


def test_a_large_penalty_is_left_to_right() -> None:
    game = Game(EntropyDistance(0.4, 100.0), 5)
    noise = torch.rand(5, 5, generator=torch.Generator().manual_seed(2)) * 5
    assert [turn(game, row.tolist()) for row in noise] == [[0], [1], [2], [3], [4]]


def test_without_a_price_it_is_a_threshold_of_entropy() -> None:
    entropy = torch.rand(300, 8, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 2
    played = [
        Game(rule, 8, rows=300).play(0.5, entropy=entropy) for rule in (EntropyDistance(0.3, 0.0), DParallel(0.3))
    ]
    assert played[0] == played[1] and max(map(len, played[0])) > 1


def test_each_row_counts_from_its_own_text() -> None:
    game = Game(EntropyDistance(0.4, 0.2), 4, rows=2)
    first = torch.zeros_like(game.canvas.masked)
    first[0, PROMPT] = True
    game.canvas = game.canvas.commit(first, game.canvas.tokens)
    view = game.view(0.5, entropy=0.0)
    assert positions(game.sampler.propose(view, game.state).commit) == [[1, 2], [0, 1]]
