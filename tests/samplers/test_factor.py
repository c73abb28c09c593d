"""factor: (n + 1) (1 - c(n)) <= f along the ranking."""

from __future__ import annotations

import pytest

from dllm.parts import Factor
from tests.samplers.game import Game


def test_the_longest_prefix_that_the_bound_allows() -> None:
    # Bars for f = 1: 1/2, 2/3, 3/4, 4/5.
    game = Game(Factor(1.0), 5)
    assert game.turn([0.7, 0.9, 0.74, 0.99, 0.1]) == [1, 3]  # third best 0.74 < 3/4
    assert game.accepted == [1, 3]


def test_the_first_is_forced_when_even_it_fails() -> None:
    game = Game(Factor(1.0), 4)
    assert game.turn([0.1, 0.2, 0.3, 0.2]) == [2]
    assert game.accepted == []


@pytest.mark.parametrize(("commit_last", "committed"), [(True, [0, 1, 2]), (False, [0, 1])])
def test_only_the_very_last_rank_fails(commit_last: bool, committed: list[int]) -> None:
    game = Game(Factor(1.0, commit_last), 3)
    assert game.turn([0.9, 0.9, 0.1]) == committed
    assert game.accepted == [0, 1]


@pytest.mark.parametrize(("commit_last", "committed"), [(True, [0, 1]), (False, [1])])
def test_two_left_and_none_passes(commit_last: bool, committed: list[int]) -> None:
    assert Game(Factor(1.0, commit_last), 2).turn([0.2, 0.3]) == committed


@pytest.mark.parametrize(("confidence", "accepted"), [(0.51, 1), (0.49, 0), (0.67, 2), (0.66, 1), (0.76, 3), (0.74, 2)])
def test_each_bar_is_where_the_formula_says(confidence: float, accepted: int) -> None:
    """1 - 1 / (n + 1) for the n-th best: 1/2, 2/3, 3/4."""
    game = Game(Factor(1.0), 6)
    game.turn([confidence] * 3 + [0.1] * 3)
    assert len(game.accepted) == accepted
