"""frontier: only the leftmost masks are open to the inner rule."""

from __future__ import annotations

import pytest
import torch
from harness import build, full, model, of_noise, requests, results

from dllm import UserError
from dllm.parts import (
    DUS,
    KLASS,
    TACG,
    Confidence,
    Credit,
    Factor,
    FreeDave,
    Frontier,
    FullLength,
    NoCache,
    Parts,
    Prophet,
    Request,
    Result,
    Sampler,
    Static,
    Whole,
    choices,
)
from tests.samplers.game import Game, positions


def decode(name: str, sampler: Sampler) -> list[Result]:
    """Two rows of 10 and 9 masks."""
    batch = [
        Request.answer(row.tokens[: row.answer_start], 10 - number, 60, number)
        for number, row in enumerate(requests()[:2])
    ]
    return results(model(name), Parts(sampler, Whole(), NoCache(), FullLength()), batch)


def test_masks_count_and_not_columns() -> None:
    game = Game(Frontier(Confidence(0.9), 3), 8)
    game.commit([1, 2, 4])
    assert game.turn([0.95, 0.99, 0.99, 0.95, 0.99, 0.95, 0.99, 0.99]) == [0, 3, 5]
    assert game.turn([0.95, 0.99, 0.99, 0.95, 0.99, 0.95, 0.2, 0.3]) == [7] and game.accepted == []


def test_the_rule_ranks_and_counts_what_the_gate_leaves() -> None:
    confidence = [0.3, 0.5, 0.7, 0.99, 0.99]
    assert Game(Frontier(Confidence(0.9), 2), 5).turn(confidence) == [1]  # forced, and so within the gate
    assert Game(Frontier(Static(per_step=4), 2), 5).turn(confidence) == [0, 1]
    assert Game(Frontier(Factor(0.8, commit_last=False), 3), 5).turn(confidence) == [2]


def test_each_row_has_its_own_frontier_and_a_wide_one_is_none() -> None:
    game = Game(Frontier(Confidence(0.0), 2), 4, rows=2)
    first = game.canvas.columns == 2
    game.canvas = game.canvas.commit(first & (game.canvas.row_id == 0)[:, None], game.canvas.tokens)
    assert game.play(0.5) == [[1, 2], [0, 1]]
    for width in (4, 100, None):
        assert Game(Frontier(Confidence(0.0), width), 4).turn(0.5) == [0, 1, 2, 3]


# What writes tokens of its own: credited, explored, told, replaced.
OWN_TOKENS, REFUSED = (
    {"credit", "ete", "joint_threshold", "oracle"},
    {"d2f", "dmax", "dus", "flash_verify", "linear_spec", "freedave", "order", "prophet", "remix", "scout"},
)


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_one_mask_wide_every_rule_decodes_from_left_to_right(name: str) -> None:
    """Half of the rules on each kind of model; ``make laws``: all of them."""
    rules = sorted(
        set(choices("sampler")) - OWN_TOKENS - REFUSED - of_noise() - ({"wino"} if name == "tiny-dream" else set())
    )
    rules = rules if full() else rules[name == "tiny-dream" :: 2]
    expected = decode(name, Frontier(Static(), 1))
    assert all(row.turns == sorted(row.turns) for row in expected)
    for rule in rules:
        rows = decode(name, Frontier(build("sampler", rule), 1))
        assert [row.canvas for row in rows] == [row.canvas for row in expected], rule
        assert all(row.turns == sorted(row.turns) for row in rows), rule


@pytest.mark.parametrize("rule", [Credit(Confidence(0.9)), KLASS(), TACG(kl=0.1)], ids=lambda rule: type(rule).__name__)
def test_a_history_is_not_starved_by_the_gate(rule: Sampler) -> None:
    """The leftmost position is the best one, so that the rule decides alike with the gate and without it."""
    logits = torch.tensor([[[3.0, 0.0, 0.5], [0.0, 1.0, 0.5], [1.0, 0.0, 0.9], [0.5, 1.5, 0.0]]])
    confidence, token = logits.double().softmax(-1).max(-1)
    gated, free = Game(Frontier(rule, 1), 4), Game(rule, 4)
    assert gated.turn(confidence, token, logits=logits) == free.turn(confidence, token, logits=logits) == [0]
    assert all(torch.equal(gated.state[f"inner.{name}"], value) for name, value in free.state.items())


def test_drafts_move_the_gate_and_lose_nothing() -> None:
    step = (game := Game(FreeDave(Frontier(Confidence(0.9), 1), 3), 5)).sampler.propose(game.view(0.5), game.state)
    assert positions(step.commit) == [[0], [0, 1], [0, 1, 2]]
    gate = Frontier(Static(), 2)
    plain, drafted = (decode("tiny-llada", rule) for rule in (gate, FreeDave(gate, 4)))
    assert [row.canvas for row in drafted] == [row.canvas for row in plain]
    assert sum(row.nfe for row in drafted) < 0.8 * sum(row.nfe for row in plain)


def test_what_is_committed_at_once_is_not_gated() -> None:
    game = Game(Prophet(Frontier(Static(), 1), thresholds=(1.0, 1.0, 1.0)), 4)
    assert game.turn(0.5, gap=2.0) == [0, 1, 2, 3]


def test_a_row_needs_a_forward_for_every_width_masks() -> None:
    game = Game(Frontier(Static(per_step=8), 3), 10)
    assert game.sampler.turns(game.canvas).tolist() == [4]
    assert [game.turn(0.5) for _ in range(4)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert Frontier(Static(), None).turns(game.canvas).tolist() == [0]
    assert Frontier(Confidence()).turns(game.canvas) is None


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        (build("sampler", "order"), "inner=order commits positions that a plan of its own names"),
        (Credit(DUS()), "inner=dus commits positions that a plan"),
        (Prophet(Static()), "Put the gate inside: sampler=prophet inner=frontier"),
        (FreeDave(Static()), "Put the gate inside: sampler=freedave inner=frontier"),
    ],
)
def test_a_rule_that_looks_elsewhere_is_refused(inner: Sampler, words: str) -> None:
    with pytest.raises(UserError, match=f"sampler=frontier .*{words}"):
        Frontier(inner)
