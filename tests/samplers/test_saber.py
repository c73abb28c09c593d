"""saber: a bar that follows all commits, and the least likely ones undone."""

from __future__ import annotations

from math import log

import pytest

from dllm import UserError
from dllm.samplers.saber import Saber
from tests.samplers.game import PROMPT, Game, positions


def undone(game: Game) -> list[int]:
    assert game.step.remask is not None
    return positions(game.step.remask)[0]


def test_at_least_the_minimum_then_all_above_the_mean() -> None:
    game = Game(Saber(minimum=2, backtrack=8), 8)
    assert game.turn([0.9, 0.7, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1], current=0.0) == [0, 1]  # the bar is 1 at the start
    assert game.accepted == []
    # Now the mean is 0.8: four exceed it.
    confidence = [0.0, 0.0, 0.81, 0.9, 0.85, 0.95, 0.8, 0.1]
    current = [log(0.9), log(0.6), 0, 0, 0, 0, 0, 0]
    assert game.turn(confidence, current=current) == [2, 3, 4, 5]
    assert game.accepted == [2, 3, 4, 5]
    assert undone(game) == [1]  # max(1, min(ceil(4 / 8), 3)) = 1, the less likely one
    assert bool(game.canvas.masked[0, PROMPT + 1]) and int(game.canvas.tokens[0, PROMPT + 1]) == 60


def test_more_is_undone_after_many_commits_but_fewer_than_were_made() -> None:
    game = Game(Saber(minimum=3, backtrack=1), 8)
    assert len(game.turn(0.9, current=0.0)) == 3 and undone(game) == []
    assert game.turn([0, 0, 0, 0.8, 0.7, 0.6, 0.1, 0.1], current=[-3, -1, -2, 0, 0, 0, 0, 0]) == [3, 4, 5]
    assert undone(game) == [0, 2]  # ceil(3 / 1) = 3, less one


def test_one_commit_undoes_none() -> None:
    game = Game(Saber(minimum=1, backtrack=8), 3)
    game.commit([0])
    assert game.turn([0, 0.5, 0.4], current=[-9, 0, 0]) == [1] and undone(game) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"minimum": 0}, "sampler.minimum=0 must be at least 1"),
        ({"backtrack": 0}, "sampler.backtrack=0 must be at least 1"),
    ],
)
def test_mistakes_are_named(options: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Saber(**options)
