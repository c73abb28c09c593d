"""saber: a bar that follows all commits, and the least likely ones undone."""

from __future__ import annotations

from math import log

import pytest
import torch

from dllm.parts import Saber
from tests.samplers.game import PROMPT, Game, positions


def undone(game: Game) -> list[int]:
    assert game.step.remask is not None
    return positions(game.step.remask)[0]


def test_at_least_the_minimum_then_all_above_the_mean() -> None:
    game = Game(Saber(), 8)
    # The bar is 1 at the start: the two surest. The less sure of them lost least since the last forward, whose
    # probabilities count as 0, so it is taken back at once.
    assert game.turn([0.9, 0.7, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1]) == [0] and game.accepted == []
    # The mean of the last commits, 0.9 and 0.7, is 0.8: four exceed it. Column 0 has fallen furthest, from 0.9 to 0.2.
    assert game.turn([0.2, 0.75, 0.81, 0.9, 0.85, 0.95, 0.8, 0.1]) == [2, 3, 4, 5]
    assert game.accepted == [2, 3, 4, 5] and undone(game) == [0]
    assert bool(game.canvas.masked[0, PROMPT]) and int(game.canvas.tokens[0, PROMPT]) == 60


def test_what_is_taken_back_lost_most_whichever_token_is_likeliest_now() -> None:
    game = Game(Saber(), 6)
    game.commit([0, 1])
    game.turn([0.9, 0.5, 0.3, 0.3, 0.2, 0.1])
    game.turn([0.5, 0.4, 0.9, 0.8, 0.2, 0.1], token=[9, 9, 7, 7, 7, 7])  # column 0 fell by 0.4
    assert undone(game) == [0]


def test_more_is_undone_after_many_commits_but_fewer_than_were_made() -> None:
    game = Game(Saber(minimum=3, backtrack=1), 8)
    assert len(game.turn(0.9)) == 1  # three, of which ceil(3 / 1) less one are taken back
    assert len(game.turn(0.9)) == 1


def test_one_commit_undoes_none_and_the_last_turn_neither() -> None:
    game = Game(Saber(minimum=1), 3)
    game.commit([0])
    assert game.turn([0.1, 0.5, 0.4]) == [1] and undone(game) == []
    game = Game(Saber(), 2)
    assert game.turn([0.9, 0.1]) == [0, 1] and undone(game) == []


def test_the_rule_for_dream_looks_at_the_tokens_that_stand_there_and_at_first_commits() -> None:
    game = Game(Saber(form="dream"), 8)
    assert game.turn([0.9, 0.7, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1], current=0.0) == [0]  # 1 is the less probable now
    current = [log(0.6), 0, 0, 0, 0, 0, 0, 0]
    assert game.turn([0.0, 0.75, 0.81, 0.9, 0.85, 0.95, 0.8, 0.1], current=current) == [2, 3, 4, 5]  # 0.8 by 0.9, 0.7
    assert undone(game) == [0]
    assert torch.allclose(game.state["at_commit"][0, PROMPT : PROMPT + 2], torch.tensor([0.9, 0.7]).double())


def test_a_token_that_comes_back_counts_as_it_is_now_but_for_dream_as_it_first_was() -> None:
    for form, expected in (("llada", 0.95), ("dream", 0.7)):
        game = Game(Saber(form=form), 8)
        game.turn([0.9, 0.7, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1], current=0.0)  # column 1 is taken back at once
        game.turn([0.9, 0.95, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1], current=0.0)
        assert float(game.state["at_commit"][0, PROMPT + 1]) == pytest.approx(expected)
