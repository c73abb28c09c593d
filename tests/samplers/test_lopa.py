"""lopa: the anchor, its lookaheads, and the one of them that leaves the model surest."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
import torch
from harness import Combination, model, requests, results, turns

from dllm.parts import Canvas, FullLength, LoPA, NoCache, Owner, Parts, Step, Whole, select
from tests.samplers.game import Game, applied, positions


def looked(game: Game, confidence: Any, **statistics: Any) -> Step:
    return game.sampler.propose(game.view(confidence, **statistics), game.state)


def test_each_lookahead_adds_one_of_the_best_that_the_anchor_leaves() -> None:
    step = looked(Game(LoPA(0.9, 3, "confidence"), 6), [0.95, 0.5, 0.9, 0.99, 0.7, 0.7])
    # The bar itself is not enough; the anchor comes first; of equals the leftmost.
    assert positions(step.commit) == [[0, 3], [0, 2, 3], [0, 3, 4], [0, 3, 5]]
    assert step.accepted is not None and positions(step.accepted) == positions(step.commit)
    assert step.state["creation"].tolist() == [[1.0, 0.9, 0.7, 0.7]]


@pytest.mark.parametrize(
    ("score", "anchor", "added"), [("confidence", 1, [0, 3]), ("margin", 3, [2, 0]), ("entropy", 2, [0, 1])]
)
def test_the_score_ranks_the_fallback_and_the_lookaheads(score: str, anchor: int, added: list[int]) -> None:
    first, second, entropy = [0.6, 0.7, 0.4, 0.5], [0.4, 0.6, 0.15, 0.1], [0.9, 1.0, 0.8, 1.1]
    step = looked(Game(LoPA(0.9, 2, score), 4), first, first=first, second=second, entropy=entropy)
    assert positions(step.commit) == [[anchor], *(sorted([anchor, at]) for at in added)]
    assert step.accepted is not None and positions(step.accepted) == [[], *([at] for at in added)]


@pytest.mark.parametrize(("finish", "candidates"), [(False, [[0, 1]]), (True, [[0, 1], [0, 1, 2]])])
def test_a_lookahead_never_finishes_what_is_open_but_in_the_published_code(
    finish: bool, candidates: list[list[int]]
) -> None:
    step = looked(Game(LoPA(0.9, 2, "confidence", as_published=finish), 3), [0.95, 0.95, 0.5])
    assert positions(step.commit) == candidates


def test_few_positions_are_few_candidates_and_rows_differ_in_them() -> None:
    game = Game(LoPA(0.9, 5, "confidence"), 4, rows=3)
    step = looked(game, [[0.95, 0.1, 0.2, 0.3], [0.95, 0.95, 0.1, 0.2], [0.95] * 4])
    assert step.owner.row.tolist() == [0, 0, 0, 0, 1, 1, 1, 2]
    assert positions(step.commit) == [[0], [0, 3], [0, 2], [0, 1], [0, 1], [0, 1, 3], [0, 1, 2], [0, 1, 2, 3]]
    assert step.state["creation"].shape == (3, 6)


def test_a_canvas_may_be_narrower_than_the_lookaheads() -> None:
    step = looked(Game(LoPA(0.9, 8, "confidence"), 4), [0.95, 0.1, 0.2, 0.3])
    assert positions(step.commit) == [[0], [0, 3], [0, 2], [0, 1]]
    assert step.state["creation"].tolist() == [[1.0, 0.3, 0.2, 0.1, *[1.0] * 5]]


@pytest.mark.parametrize("factor", [0, 1])
def test_a_factor_of_one_is_the_anchor_alone(factor: int) -> None:
    rule = LoPA(0.9, factor, "confidence")
    assert not rule.traits.branches and positions(looked(Game(rule, 3), [0.95, 0.5, 0.5]).commit) == [[0]]


def kept(rule: LoPA, future: list[list[float]], game: Game, step: Step) -> int:
    """The candidate that a row goes on with when the next forward gives each position of each candidate ``future``."""
    view = game.view(0.5)
    candidates: Canvas = applied(step, view)
    game.canvas, game.span = candidates, select(game.span, step.owner.row)
    return int(rule.choose(game.view(future), step.owner, game.state | step.state)[0])


@pytest.mark.parametrize(("share", "alpha"), [(1.0, 0.0), (0.5, 0.0), (0.0, 0.0), (0.4, 0.3), (1.0, 0.1)])
def test_the_row_goes_on_where_the_weakest_of_its_masks_are_surest(share: float, alpha: float) -> None:
    rng, chosen = random.Random(5), set()
    for _ in range(40):
        rule, now = LoPA(0.9, 3, "confidence", share, alpha), [rng.uniform(0.2, 0.95) for _ in range(6)]
        game = Game(rule, 6)
        step = looked(game, now)
        future = [[rng.random() for _ in range(6)] for _ in step.owner.row]
        values = []
        for number, commit in enumerate(positions(step.commit)):
            (added,) = set(commit) - set(positions(step.commit)[0]) or {None}
            ranked = sorted(future[number][at] for at in range(6) if at not in commit)
            weakest = fmean(ranked[: max(1, math.floor(share * len(ranked)))]) if ranked else 1.0
            values.append(alpha * (1.0 if added is None else now[added]) + (1 - alpha) * weakest)
        best = max(range(len(values)), key=lambda at: values[at])
        assert kept(rule, future, game, step) == best
        chosen.add(best)
    assert len(chosen) > 2


def test_the_anchor_loses_ties_and_a_finished_candidate_wins() -> None:
    rule = LoPA(0.9, 2, "confidence")
    game = Game(rule, 4)
    step = looked(game, [0.95, 0.5, 0.6, 0.4])
    assert kept(rule, [[0.5] * 4] * 3, game, step) == 1
    rule = LoPA(0.9, 2, "confidence", as_published=True)
    game = Game(rule, 2)
    step = looked(game, [0.95, 0.5])
    assert kept(rule, [[0.99, 0.99]] * 2, game, step) == 1


def test_a_row_with_one_candidate_keeps_it() -> None:
    rule = LoPA(0.9, 2, "confidence", alpha=1.0)
    game = Game(rule, 3, rows=2)
    view = game.view(0.5)
    owner = Owner(torch.tensor([0, 1, 1, 1]), 2)
    game.canvas, game.span = owner.per_candidate(view.canvas), select(game.span, owner.row)
    creation = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.8, 1.0]]).double()
    assert rule.choose(game.view(0.5), owner, game.state | {"creation": creation}).tolist() == [0, 3]


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_a_fresh_last_token_costs_no_forward(name: str) -> None:
    """With alpha 0 a finished lookahead always wins, so both ways of the last position take the same forwards."""
    ours, published = (
        results(model(name), Parts(LoPA(0.9, 2, as_published=finish), Whole(), NoCache(), FullLength()), requests())
        for finish in (False, True)
    )
    assert [row.nfe for row in ours] == [row.nfe for row in published]
    alone = [replace(row, param_index=number) for number, row in enumerate(requests())]
    again = [results(model(name), Parts(LoPA(0.9, 2), Whole(), NoCache(), FullLength()), [row])[0] for row in alone]
    assert [(row.canvas, row.nfe) for row in again] == [(row.canvas, row.nfe) for row in ours]


def test_a_plan_made_for_the_first_candidate_opens_the_masks_of_each() -> None:
    """A model that is causal by rank predicts masks alone, and one plan of the cache says which for all candidates."""
    several = 0
    for turn in turns(Combination("lopa", "whole", model="tiny-wedlm"), requests()):
        assert torch.equal(turn.view.open, turn.view.canvas.undecided & turn.view.blocks.in_open)
        several += len(turn.tried.row_id) > len(turn.canvas.row_id)
    assert several > 3
