"""confidence: at least the threshold, and always the best."""

from __future__ import annotations

import pytest

from dllm import UserError
from dllm.parts import Confidence
from tests.samplers.game import Game


def test_what_reaches_the_threshold_is_committed_equality_included() -> None:
    game = Game(Confidence(0.9), 4)
    assert game.turn([0.9, 0.5, 0.95, 0.8999]) == [0, 2]
    assert game.accepted == [0, 2]


def test_without_any_the_best_is_forced_the_lowest_of_equals() -> None:
    game = Game(Confidence(0.9), 4)
    assert game.turn([0.2, 0.6, 0.6, 0.1]) == [1]
    assert game.accepted == []


def test_later_blocks_wait() -> None:
    game = Game(Confidence(0.9), 4, block=2)
    assert [game.turn([0.1, 0.95, 1.0, 1.0]), game.turn([0.1, 0.0, 1.0, 1.0]), game.turn([0, 0, 0.1, 1.0])] == [
        [1],
        [0],
        [3],
    ]


def test_every_row_has_its_own_threshold() -> None:
    game = Game(Confidence([0.9, 0.5]), 3, rows=2)
    assert game.play([0.6, 0.7, 0.1]) == [[1], [0, 1]]


@pytest.mark.parametrize("threshold", [1.5, -0.1, float("nan"), [0.5, 2.0]])
def test_a_threshold_outside_its_range_is_refused(threshold: object) -> None:
    with pytest.raises(UserError, match=r"sampler\.threshold=.* must lie in \[0, 1\]"):
        Confidence(threshold)
