"""localleap: an easier bar within a radius of an anchor."""

from __future__ import annotations

import pytest
import torch

from dllm.parts import Confidence, LocalLeap
from tests.samplers.game import Game


def test_near_an_anchor_the_relaxed_bar_is_enough() -> None:
    game = Game(LocalLeap(0.9, 0.75, 2), 7)
    assert game.turn([0.8, 0.75, 0.7, 0.95, 0.8, 0.8, 0.8]) == [1, 3, 4, 5]
    assert game.accepted == [1, 3, 4, 5]


def test_the_bars_themselves_are_enough() -> None:
    game = Game(LocalLeap(0.875, 0.75, 1), 5)
    assert game.turn([0.875, 0.75, 0.75, 0.1, 0.1]) == game.accepted == [0, 1]


def test_one_hop_a_turn_and_committed_positions_are_no_anchors() -> None:
    game = Game(LocalLeap(0.9, 0.75, 1), 6)
    confidence = [0.95, 0.8, 0.8, 0.8, 0.1, 0.1]
    assert game.turn(confidence) == [0, 1]  # 2 is near 1, which is no anchor
    assert game.turn(confidence) == [2]  # forced: 0 is committed and anchors nothing
    assert game.accepted == []


def test_without_an_anchor_only_the_best() -> None:
    assert Game(LocalLeap(0.9, 0.75, 4), 3).turn([0.8, 0.85, 0.76]) == [1]


@pytest.mark.parametrize("leap", [LocalLeap(0.7, 0.3, 0), LocalLeap(0.7, 0.7, 3)], ids=["radius-0", "relaxed-equal"])
def test_switched_off_it_is_the_threshold(leap: LocalLeap) -> None:
    noise = torch.Generator().manual_seed(5)
    one, other = Game(leap, 11, block=5, rows=3), Game(Confidence(0.7), 11, block=5, rows=3)
    for _ in range(8):
        confidence = torch.rand(3, 11, generator=noise)
        assert one.play(confidence) == other.play(confidence)


def test_radius_and_thresholds_per_row() -> None:
    game = Game(LocalLeap(0.9, [0.5, 0.8], [3, 1]), 4, rows=2)
    assert game.play([0.95, 0.8, 0.6, 0.6]) == [[0, 1, 2, 3], [0, 1]]
