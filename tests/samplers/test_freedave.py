"""freedave: drafts, and the furthest that verification reaches."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from dllm import UserError
from dllm.parts import Canvas, Confidence, Credit, FreeDave, Request, Saber, Sampler, Static, agreement
from tests.samplers.game import MASK, Game, applied, positions


def test_drafts_are_the_inner_rule_applied_again_and_again() -> None:
    game = Game(FreeDave(Static(), 3), 5, rows=2)
    view = game.view([0.1, 0.9, 0.5, 0.7, 0.6])
    step = game.sampler.propose(view, game.state)
    assert step.owner.row.tolist() == [0, 0, 0, 1, 1, 1]
    assert positions(step.commit)[:3] == [[1], [1, 3], [1, 3, 4]]


def test_a_single_mask_left_makes_a_single_candidate() -> None:
    game = Game(FreeDave(Static(), 4), 3)
    game.commit([0, 2])
    assert game.turn(0.5) == [1] and game.step.owner.is_single


def test_a_threshold_draft_ends_where_the_block_does() -> None:
    game = Game(FreeDave(Confidence(0.9), 8), 6, block=4)
    step = game.sampler.propose(game.view([0.95, 0.95, 0.5, 0.4, 0.99, 0.99]), game.state)
    assert positions(step.commit) == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]


@pytest.mark.parametrize("inner", [Static(), Confidence(0.9)], ids=["static", "confidence"])
@pytest.mark.parametrize("depth", [2, 8])
def test_on_top_of_what_a_cache_forces_drafts_guess_one_position_more_each(inner: Sampler, depth: int) -> None:
    """The scores are older than the forced commit, so no threshold applies to them (FreeDave, Dream); and there are no
    more candidates than masks left, so the last mask is never drafted."""
    game = Game(FreeDave(inner, depth), 4)
    view = game.view([0.1, 0.95, 0.3, 0.97])
    only = torch.zeros_like(view.open).index_fill(1, torch.tensor([2]), True)  # the answer's position 0
    step = game.sampler.propose(game.view_of(view.scores, only), game.state)
    assert positions(step.commit) == [[0], [0, 3], [0, 1, 3]][:depth]


def reached(candidates: list[list[int]], successors: list[list[int]], mask: int) -> int:
    """The published loop: the largest later candidate that agrees with the successor of the one reached."""
    at = 0
    while True:
        ahead = [
            j
            for j in range(at + 1, len(candidates))
            if all(c in (mask, t) for c, t in zip(candidates[j], successors[at], strict=True))
        ]
        if not ahead:
            return at
        at = max(ahead)


def canvas_of(rows: list[list[int]]) -> Canvas:
    return Canvas.of([Request(row, [token == MASK for token in row], start=0) for row in rows], 61)


def test_agreement_by_trying_every_pair() -> None:
    states = [list(state) for state in product((1, 2, MASK), repeat=3)]
    noise = torch.Generator().manual_seed(0)
    for _ in range(200):
        pick = torch.randint(0, len(states), (2, 4), generator=noise).tolist()
        candidates, successors = ([states[at] for at in row] for row in pick)
        agree = agreement(canvas_of(candidates), canvas_of(successors), torch.tensor([[0, 1, 2, 3]]))[0]
        for i, j in product(range(4), repeat=2):
            same = all(c in (MASK, t) for c, t in zip(candidates[j], successors[i], strict=True))
            assert bool(agree[i, j]) == (i < j and same)


def test_the_state_kept_is_the_published_loops() -> None:
    """Random scores for every candidate; the deepest reachable draft goes on."""
    noise = torch.Generator().manual_seed(9)
    depths = set()
    for _ in range(300):
        game = Game(FreeDave(Static(), 3), 4)
        view = game.view(torch.rand(4, generator=noise), torch.randint(1, 3, (4,), generator=noise))
        step = game.sampler.propose(view, game.state)
        state = {**game.state, **step.state}
        game.canvas = applied(step, view)
        confidence = torch.tensor([[0.9, 0.8, 0.7, 0.6]]).double() + torch.rand(3, 4, generator=noise) * 0.2
        token = torch.randint(1, 3, (3, 4), generator=noise)
        after = game.view(confidence, token)
        after = replace(after, blocks=step.owner.per_candidate(game.span))
        kept = int(game.sampler.choose(after, step.owner, state)[0])
        drafts = [[int(t) for t in row[2:]] for row in game.canvas.tokens]
        successors = []
        for row, draft in enumerate(drafts):
            best = max((at for at in range(4) if draft[at] == MASK), key=lambda at, r=row: float(confidence[r, at]))
            successors.append([int(token[row, at]) if at == best else draft[at] for at in range(4)])
        depths.add(kept)
        assert kept == reached(drafts, successors, MASK)
    assert depths == {0, 1, 2}


@pytest.mark.parametrize(
    "inner", [Static(score="random"), Credit(Confidence()), Saber()], ids=["random", "credit", "saber"]
)
def test_an_inner_rule_that_does_not_repeat_itself_is_refused(inner: object) -> None:
    with pytest.raises(UserError, match=r"must be deterministic and carry no state\. Use static"):
        FreeDave(inner)  # type: ignore[arg-type]
