"""ete: exploit what is sure in several blocks, explore where little is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dllm.parts import ETE
from tests.samplers.game import PROMPT, Game, positions


def turn(game: Game, probabilities: list[list[float]]) -> Any:
    p = torch.tensor([probabilities], dtype=torch.float64)
    entropy = -(p * p.clamp(min=1e-300).log()).sum(-1)
    view = game.view(p.amax(-1), p.argmax(-1), first=p.amax(-1), entropy=entropy, logits=p.log())
    return game.sampler.propose(view, game.state)


SURE, NEARLY, OPEN, FLAT = [0.96, 0.02, 0.01, 0.01], [0.92, 0.04, 0.02, 0.02], [0.5, 0.3, 0.15, 0.05], [0.25] * 4


def test_later_blocks_are_open_at_their_own_threshold() -> None:
    game = Game(ETE(lookahead_blocks=1, explore_min_commit=0), 6, block=2)
    step = turn(game, [NEARLY, OPEN, SURE, NEARLY, SURE, SURE])
    assert positions(step.commit) == [[0, 2]]
    alone = Game(ETE(lookahead_blocks=0, explore_min_commit=0), 6, block=2)
    assert positions(turn(alone, [NEARLY, OPEN, SURE, NEARLY, SURE, SURE]).commit) == [[0]]


def test_few_commits_lead_to_a_candidate_per_likely_token() -> None:
    game = Game(ETE(lookahead_blocks=0, explore_width=3, explore_mass=0.8), 4)
    step = turn(game, [SURE, OPEN, FLAT, NEARLY])
    assert step.owner.is_single  # two are committed: no need
    step = turn(Game(ETE(lookahead_blocks=0), 4), [SURE, OPEN, FLAT, OPEN])
    assert step.owner.row.tolist() == [0, 0, 0] and positions(step.commit) == [[0, 1]] * 3
    assert step.tokens[:, PROMPT + 1].tolist() == [0, 1, 2]
    assert positions(step.accepted) == [[0]] * 3  # the explored position is not the rule's own


def test_a_position_without_enough_mass_is_not_explored() -> None:
    step = turn(Game(ETE(lookahead_blocks=0), 3), [FLAT, FLAT, FLAT])  # three hold 0.75
    assert step.owner.is_single and positions(step.commit) == [[0]]


@pytest.mark.parametrize(("where", "explored"), [("entropy", 2), ("lowest_confidence", 1), ("leftmost", 0)])
def test_where_it_explores(where: str, explored: int) -> None:
    rows = [[0.6, 0.4, 0.0, 0.0], [0.45, 0.45, 0.1, 0.0], [0.46, 0.2, 0.2, 0.14]]
    step = turn(Game(ETE(lookahead_blocks=0, explore_position=where), 3), rows)
    assert positions(step.commit)[0] == [explored]


@pytest.mark.parametrize(("score", "kept"), [("pseudo_likelihood", 0), ("cascade_count", 1)])
def test_the_most_plausible_candidate_is_kept(score: str, kept: int) -> None:
    game = Game(ETE(lookahead_blocks=0, explore_width=2, explore_mass=0.7, explore_score=score), 3)
    p = torch.tensor([[OPEN, FLAT, FLAT]]).double()
    entropy = torch.tensor([[0.9, 1.4, 1.4]])
    view = game.view(p.amax(-1), p.argmax(-1), first=p.amax(-1), entropy=entropy, logits=p.log())
    step = game.sampler.propose(view, game.state)
    state = {**game.state, **step.state}
    # ln 0.5 + 2 ln 0.89 = -0.93 against ln 0.3 + ln 0.95 + ln 0.5 = -1.95; one of the latter reaches 0.9
    branches = Game(game.sampler, 3, rows=2)
    branches.commit([0])
    first = [[0.0, 0.89, 0.89], [0.0, 0.95, 0.5]]
    after = branches.view(first, first=first, entropy=0.0)
    assert int(game.sampler.choose(after, step.owner, state)[0]) == kept


def test_exploring_the_last_mask_needs_no_candidates() -> None:
    step = turn(Game(ETE(lookahead_blocks=0), 1), [OPEN])
    assert step.owner.is_single and positions(step.commit) == [[0]]
