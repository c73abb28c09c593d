"""dparallel: at most so much entropy, and always the least."""

from __future__ import annotations

from dllm.parts import DParallel
from tests.samplers.game import Game


def test_low_entropy_is_committed_equality_included() -> None:
    game = Game(DParallel(0.5), 4)
    assert game.turn(0.5, entropy=[0.5, 0.51, 0.0, 2.0]) == [0, 2]


def test_otherwise_the_least_entropy_is_forced_whatever_its_confidence() -> None:
    game = Game(DParallel(0.1), 3)
    assert game.turn([0.9, 0.2, 0.1], entropy=[0.9, 0.8, 0.8]) == [1]
    assert game.accepted == []
