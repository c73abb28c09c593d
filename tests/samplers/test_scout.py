"""scout: its tree of drafts, what it learns of them, and that it follows its inner rule's own steps alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dllm import UserError
from dllm.parts import Confidence, Credit, Saber, Sampler, Scout, Static, Step, View
from tests.samplers.game import MASK, Game, applied, positions

TOKENS = 4


def seen(game: Game, chance: Any) -> View:
    """A view from probabilities [rows, length, TOKENS]."""
    chance = torch.as_tensor(chance, dtype=torch.float64)
    chance = chance if chance.dim() == 3 else chance[None]
    first, token = chance.max(-1)
    return game.view(first, token, logits=chance.log(), first=first)


def drafts(step: Step) -> list[dict[int, int]]:
    """What each candidate commits: token by position."""
    return [
        {at: int(tokens[at + 2]) for at in where}
        for where, tokens in zip(positions(step.commit), step.tokens, strict=True)
    ]


def peaked(*best: tuple[float, float]) -> list[list[float]]:
    """Probabilities of tokens 0 and 1 at each position; the others share the rest."""
    return [[one, two, *[(1 - one - two) / (TOKENS - 2)] * (TOKENS - 2)] for one, two in best]


def test_candidates_are_the_rules_own_and_the_likeliest_after_it() -> None:
    game = Game(Scout(Confidence(0.9), candidates=4, top_k=2, min_probability=0.0), 4)
    step = game.sampler.propose(seen(game, peaked((0.95, 0.01), (0.6, 0.01), (0.5, 0.45), (0.3, 0.1))), game.state)
    # Weights 0.130 (1), 0.063 and 0.051 (2), twice 0.008 (3): 1 has the chance 1/5 + 4/5 * 0.130 / 0.259 = 0.60; from
    # there the first token of 2 has 0.59 and the second 0.31, together 0.35 and 0.188; 2 alone has 0.193.
    assert drafts(step) == [{0: 0}, {0: 0, 1: 0}, {0: 0, 2: 0}, {0: 0, 1: 0, 2: 0}]
    one = Scout(Confidence(0.9), candidates=16, top_k=1, min_probability=0.0)
    both = Scout(Confidence(0.9), candidates=16, top_k=2, min_probability=0.0)
    view = seen(game, peaked((0.95, 0.01), (0.6, 0.01), (0.5, 0.45), (0.3, 0.1)))
    found = [drafts(rule.propose(view, game.state)) for rule in (one, both)]
    assert {0: 0, 2: 1} not in found[0] and {0: 0, 2: 1} in found[1]
    assert all(0 < len(draft) < 4 for draft in [*found[0], *found[1]])  # a filled answer needs no forward


def test_rows_differ_in_their_candidates() -> None:
    game = Game(Scout(Confidence(0.9), candidates=3), 3, rows=2)
    chance = torch.tensor([peaked((0.95, 0.01), (0.6, 0.2), (0.5, 0.2)), peaked(*[(0.95, 0.01)] * 3)])
    step = game.sampler.propose(seen(game, chance), game.state)
    assert step.owner.row.tolist() == [0, 0, 0, 1] and positions(step.commit)[-1] == [0, 1, 2]


def kept(game: Game, first: Any, then: Any) -> dict[int, int]:
    """What stands after the draft from ``first`` is verified by ``then``, probabilities for every candidate alike."""
    view = seen(game, first)
    step = game.sampler.propose(view, game.state)
    game.state = {**game.state, **step.state}
    game.canvas = applied(step, view)
    after = seen(game, torch.as_tensor(then).expand(len(step.owner.row), -1, -1))
    chosen = game.sampler.choose(replace(after, blocks=step.owner.per_candidate(game.span)), step.owner, game.state)
    canvas = game.canvas.select(chosen)
    return {at - 2: int(canvas.tokens[0, at]) for at in range(2, canvas.tokens.shape[1]) if not canvas.masked[0, at]}


def test_the_row_follows_the_rules_steps_also_to_a_token_that_was_second() -> None:
    rule, first = Confidence(0.9), peaked((0.95, 0.01), (0.6, 0.01), (0.5, 0.45), (0.3, 0.1))
    # The next forward says: position 2 becomes token 1 first, then position 1 token 0.
    then = peaked((0.95, 0.01), (0.6, 0.01), (0.01, 0.8), (0.3, 0.1))
    assert kept(Game(Scout(rule, 16, 2, 0.0), 4), first, then) == {0: 0, 1: 0, 2: 1}
    assert kept(Game(Scout(rule, 16, 1, 0.0), 4), first, then) == {0: 0}
    # Two at once: no candidate between is needed, and a subset of the step is no step of the rule.
    both = peaked((0.95, 0.01), (0.95, 0.01), (0.01, 0.95), (0.3, 0.1))
    assert kept(Game(Scout(rule, 16, 2, 0.0), 4), first, both) == {0: 0, 1: 0, 2: 1}
    assert kept(Game(Scout(rule, 3, 2, 0.0), 4), first, both) == {0: 0}


def after(canvas: list[int], chance: Tensor) -> list[int]:
    """One step of Confidence(0.5) from ``canvas`` with its probabilities."""
    (sure, token), open_ = chance.max(-1), [at for at, value in enumerate(canvas) if value == MASK]
    taken = [at for at in open_ if sure[at] >= 0.5] or [*sorted(open_, key=lambda at: (-float(sure[at]), at))][:1]
    return [int(token[at]) if at in taken else value for at, value in enumerate(canvas)]


def test_against_brute_force_on_random_worlds() -> None:
    """Every canvas has probabilities of its own. What is kept is the furthest canvas on the inner rule's own path to
    which every one before is a candidate."""
    noise, hops = torch.Generator().manual_seed(5), []
    for _ in range(40):
        game = Game(Scout(Confidence(0.5), candidates=6, min_probability=0.0), 4)
        scores: dict[tuple[int, ...], Tensor] = {}
        base = torch.rand(4, TOKENS, generator=noise, dtype=torch.float64)

        def world(canvas: list[int], scores: dict[tuple[int, ...], Tensor] = scores, base: Tensor = base) -> Tensor:
            key = tuple(canvas)
            if key not in scores:
                other = base + 0.3 * torch.rand(4, TOKENS, generator=noise, dtype=torch.float64)
                scores[key] = (3 * other).softmax(-1)
            return scores[key]

        view = seen(game, world([MASK] * 4))
        step = game.sampler.propose(view, game.state)
        state = {**game.state, **step.state}
        game.canvas = applied(step, view)
        tried = [
            [MASK if hole else token for token, hole in zip(row[2:], holes[2:], strict=True)]
            for row, holes in zip(game.canvas.tokens.tolist(), game.canvas.masked.tolist(), strict=True)
        ]
        judged = seen(game, torch.stack([world(row) for row in tried]))
        if len(tried) == 1:
            continue
        chosen = int(
            game.sampler.choose(replace(judged, blocks=step.owner.per_candidate(game.span)), step.owner, state)[0]
        )
        here, reached = tried[0], 0
        for _ in range(len(tried)):
            following = after(here, world(here))
            if following not in tried:
                break
            here, reached = following, tried.index(following)
        assert chosen == reached
        hops.append(chosen)
    assert len(set(hops)) > 3


def test_it_learns_how_far_repeated_steps_come_true() -> None:
    sampler = Scout(Static(), candidates=4)
    game = Game(sampler, 8)
    sure = peaked(*[(0.9 - at / 100, 0.01) for at in range(8)])
    step = sampler.propose(seen(game, sure), game.state)
    assert (step.state["hits"].tolist(), step.state["tries"].tolist()) == ([0], [0])
    state = {**game.state, **step.state}
    for stands, other, expected in (
        ([0, 1, 2], None, (3, 3)),  # two further steps, and the next one is as it was
        ([0], None, (1, 1)),  # no further step was kept, but the one after the first comes true
        ([0, 1], 5, (1, 2)),  # one came true, then the rule goes another way
    ):
        later = Game(sampler, 8)
        later.commit(stands, 0)
        chance = sure if other is None else [*sure[:other], [0.97, 0.01, 0.01, 0.01], *sure[other + 1 :]]
        own = sampler.propose(seen(later, chance), state).state
        assert (int(own["hits"]), int(own["tries"])) == expected


@pytest.mark.parametrize(
    "inner", [Static(score="random"), Credit(Confidence()), Saber()], ids=["random", "credit", "saber"]
)
def test_an_inner_rule_that_does_not_repeat_itself_is_refused(inner: Sampler) -> None:
    with pytest.raises(UserError, match=r"sampler=scout .* must be deterministic and carry no state"):
        Scout(inner)
