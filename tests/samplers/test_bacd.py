"""bacd: the bar is the mean confidence of the block's commits, clamped."""

from __future__ import annotations

import pytest
import torch

from dllm.parts import BACD, Confidence
from tests.samplers.game import Game


@pytest.mark.parametrize(
    ("confidence", "committed"),
    [
        ([0.7, 0.8, 0.65, 0.8], [1, 3]),  # the largest is the bar: it and its equals
        ([0.95, 0.91, 0.89, 0.9], [0, 1, 3]),  # clamped to upper
        ([0.3, 0.5, 0.59, 0.2], [2]),  # below lower: the best alone, forced
    ],
)
def test_the_first_turn_of_a_block(confidence: list[float], committed: list[int]) -> None:
    assert Game(BACD(0.6, 0.9), 4).turn(confidence) == committed


def test_the_first_bar_is_of_the_open_block_alone() -> None:
    """Surer positions of a later block, and what is decided, do not raise it."""
    assert Game(BACD(0.6, 0.9), 8, block=4).turn([0.7, 0.8, 0.65, 0.8, 0.99, 0.99, 0.99, 0.99]) == [1, 3]
    assert Game(BACD(0.1, 0.9), 8, block=4).turn([0.3, 0.2, 0.2, 0.25, 0.8, 0.8, 0.8, 0.8]) == [0]


def test_the_mean_is_over_tokens_not_turns() -> None:
    game = Game(BACD(0.0, 0.9), 6)
    assert game.turn([0.9, 0.9, 0.1, 0.1, 0.1, 0.1]) == [0, 1]
    assert game.turn([0.0, 0.0, 0.3, 0.2, 0.1, 0.1]) == [2]  # forced, and pulls the mean down to 0.7
    assert game.accepted == []
    assert game.turn([0.0, 0.0, 0.0, 0.71, 0.69, 0.75]) == [3, 5]


@pytest.mark.parametrize(("history", "committed"), [("block", [2]), ("sequence", [2, 3])])
def test_history_starts_anew_in_every_block(history: str, committed: list[int]) -> None:
    game = Game(BACD(0.1, 0.9, history), 4, block=2)
    assert game.turn([0.5, 0.5, 0.0, 0.0]) == [0, 1]
    assert game.turn([0.0, 0.0, 0.8, 0.6]) == committed


@pytest.mark.parametrize("bar", [0.4, 0.8])
def test_with_equal_clamps_it_is_the_threshold(bar: float) -> None:
    noise = torch.Generator().manual_seed(1)
    one, other = Game(BACD(bar, bar), 9, block=4, rows=2), Game(Confidence(bar), 9, block=4, rows=2)
    for _ in range(9):
        confidence = torch.rand(2, 9, generator=noise)
        assert one.play(confidence) == other.play(confidence)


def test_it_lies_between_the_two_thresholds() -> None:
    noise = torch.Generator().manual_seed(3)
    game = Game(BACD(0.5, 0.8), 24)
    while bool(game.canvas.masked.any()):
        confidence, free = torch.rand(24, generator=noise), game.canvas.masked[0, 2:]
        committed = set(game.turn(confidence))
        at_least = set((free & (confidence >= 0.8)).nonzero()[:, 0].tolist())
        at_most = set((free & (confidence >= 0.5)).nonzero()[:, 0].tolist())
        assert at_least <= committed and (committed <= at_most or len(committed) == 1)
