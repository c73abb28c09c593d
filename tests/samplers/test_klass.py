"""klass: confident, and calm for some turns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dllm import UserError
from dllm.samplers.klass import KLASS
from tests.samplers.game import Game

EASY = [0.97, 0.02, 0.01]
OTHER = [0.01, 0.02, 0.97]
FLAT = [0.4, 0.3, 0.3]


def turn(game: Game, *rows: list[float]) -> list[int]:
    p = torch.tensor([rows], dtype=torch.float64)
    return game.turn(p.amax(-1), p.argmax(-1), logits=p.log())


def test_confident_positions_wait_until_they_are_calm() -> None:
    game = Game(KLASS(0.9, 0.01, history=2), 4)
    rows = [EASY, FLAT, EASY, FLAT]
    assert turn(game, *rows) == [0] and game.accepted == []  # nothing to compare with: the best is forced
    assert turn(game, *rows) == [2] and game.accepted == []  # calm for one turn only
    assert turn(game, *rows) == [1]  # flat ones are never confident


def test_two_calm_turns_are_accepted_together() -> None:
    game = Game(KLASS(0.9, 0.01, history=2), 5)
    rows = [EASY, EASY, EASY, EASY, FLAT]
    assert turn(game, *rows) == [0]
    assert turn(game, *rows) == [1]
    assert turn(game, *rows) == [2, 3] and game.accepted == [2, 3]


def test_a_change_of_mind_starts_the_count_again() -> None:
    game = Game(KLASS(0.9, 0.01, history=1), 4)
    assert turn(game, EASY, EASY, EASY, FLAT) == [0]
    assert turn(game, EASY, EASY, OTHER, FLAT) == [1] and game.accepted == [1]
    assert turn(game, EASY, EASY, OTHER, FLAT) == [2]


def test_the_divergence_is_of_the_new_from_the_old() -> None:
    new, old = torch.tensor(FLAT).double(), torch.tensor(EASY).double()

    def kl(p: Tensor, q: Tensor) -> float:
        return float((p * (p / q).log()).sum())

    assert abs(kl(new, old) - kl(old, new)) > 0.1
    for bar, committed in ((kl(new, old) * 1.01, [1, 2]), (kl(new, old) * 0.99, [2])):
        game = Game(KLASS(0.2, bar, history=1), 3)
        assert turn(game, EASY, EASY, FLAT) == [0]
        assert turn(game, EASY, FLAT, FLAT) == committed


def test_history_starts_anew_in_every_block() -> None:
    game = Game(KLASS(0.9, 0.01, history=1), 4, block=2)
    assert turn(game, EASY, EASY, EASY, EASY) == [0]
    assert turn(game, EASY, EASY, EASY, EASY) == [1] and game.accepted == [1]
    assert turn(game, EASY, EASY, EASY, EASY) == [2] and game.accepted == []


@pytest.mark.parametrize(
    ("options", "words"),
    [({"history": 0}, "sampler.history=0 must be at least 1"), ({"kl": -1}, "sampler.kl=-1 must")],
)
def test_mistakes_are_named(options: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        KLASS(**options)
