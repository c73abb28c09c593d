"""adas: a position's error counts what it owes to uncertain positions chosen before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from harness import full, model, requests, results

from dllm import UserError
from dllm.parts import (
    BACD,
    PC,
    Adas,
    AttentionMap,
    Cache,
    Confidence,
    DParallel,
    Dream,
    Dual,
    EntropyBound,
    Factor,
    Fixed,
    Frechet,
    FreeDave,
    FullLength,
    LocalLeap,
    NoCache,
    Parts,
    Prefix,
    Saber,
    Sampler,
    Setting,
    Static,
    View,
    validate,
)
from tests.samplers.game import PROMPT, Game, with_attention

LENGTH = 7
# A rule, and its own stopping test: the errors of what was chosen before in their order, the next one's, what is open.
Stop = Callable[[list[float], float, int], bool]
RULES: dict[str, tuple[Sampler, Stop]] = {
    "confidence": (Confidence(0.6), lambda before, e, m: e > 1 - 0.6),
    "static": (Static(per_step=3), lambda before, e, m: len(before) == 3),
    "entropy": (Static(per_step=3, score="entropy"), lambda before, e, m: len(before) == 3),
    "factor": (Factor(1.0, False), lambda before, e, m: (len(before) + 2) * e > 1.0),
    "frechet": (Frechet(0.1), lambda before, e, m: sum(before) + 2 * e >= 1 - 0.1),
    "dparallel": (DParallel(0.2), lambda before, e, m: e > 0.2),
    "eb": (EntropyBound(0.5), lambda before, e, m: sum(before) > 0.5),
}


def literally(error: list[float], open_: list[bool], weights: list[list[float]], weight: float, stop: Stop) -> set[int]:
    """The definition in loops: the least error and debt first, which the rule's own test may end; the first always."""
    left, debt, chosen, seen = {i for i, o in enumerate(open_) if o}, [0.0] * len(error), set[int](), list[float]()
    count = len(left)
    while left:
        best = min(left, key=lambda i: (error[i] + weight * debt[i], i))
        effective = error[best] + weight * debt[best]
        if chosen and stop(seen, effective, count):
            break
        chosen.add(best)
        left.remove(best)
        seen.append(effective)
        for k in left:
            debt[k] += weights[k][best] * error[best]
    return chosen


def made_up(seed: int) -> tuple[View, list[list[float]], list[float]]:
    """Two turns' worth of noise: a view with attention, the weights [L, L] and the errors of every column."""
    noise = torch.Generator().manual_seed(seed)
    game = Game(Static(), LENGTH)
    game.commit(torch.randperm(LENGTH, generator=noise)[: int(torch.randint(0, 4, (), generator=noise))].tolist())
    error = torch.rand(LENGTH, generator=noise, dtype=torch.float64) * 0.5
    weights = torch.rand(1, PROMPT + LENGTH, PROMPT + LENGTH, generator=noise, dtype=torch.float64)
    view = game.view(1 - error, entropy=error)
    return with_attention(view, weights), weights[0].tolist(), [0.0] * PROMPT + error.tolist()


def committed(rule: Sampler, view: View) -> set[int]:
    step = rule.propose(view, rule.start(view.canvas, Fixed(LENGTH)))
    return set(step.commit[0].nonzero()[:, 0].tolist())


@pytest.mark.daily(3)
@pytest.mark.parametrize("weight", [0.3, 1.0, 5.0] if full() else [1.0])
@pytest.mark.parametrize("name", RULES)
def test_a_turn_is_the_definition_on_made_up_attention(name: str, weight: float) -> None:
    (rule, stop), changed = RULES[name], 0
    for seed in range(40):
        view, weights, error = made_up(seed)
        expected = literally(error, view.open[0].tolist(), weights, weight, stop)
        assert committed(Adas(rule, weight), view) == expected, seed
        changed += expected != committed(rule, view)
    assert changed > 4


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", RULES)
def test_weight_0_is_the_inner_rule(name: str) -> None:
    rule, _ = RULES[name]
    for seed in range(40):
        view, _, _ = made_up(seed)
        one, other = (part.propose(view, part.start(view.canvas, Fixed(LENGTH))) for part in (Adas(rule, 0.0), rule))
        assert torch.equal(one.commit, other.commit) and torch.equal(one.confidence, other.confidence)
        assert (one.accepted is None and other.accepted is None) or torch.equal(one.accepted, other.accepted)  # type: ignore


def test_a_position_that_leans_on_an_uncertain_one_waits() -> None:
    """0.85 attends to 0.9 by half: 0.15 + 0.5 * 0.1 = 0.2 is the last error that a threshold of 0.8 takes."""
    for certain, attention, expected in ((0.9, 0.5, [0, 1]), (0.9, 0.6, [0]), (1.0, 1.0, [0, 1])):
        game, weights = Game(Static(), 2), torch.zeros(1, 4, 4, dtype=torch.float64)
        weights[0, PROMPT + 1, PROMPT] = attention
        view = with_attention(game.view([certain, 0.85]), weights)
        rule = Adas(Confidence(0.8 - 1e-12))
        assert committed(rule, view) == {PROMPT + at for at in expected}
        step = rule.propose(view, rule.start(view.canvas, Fixed(2)))
        assert step.confidence[0, PROMPT:].tolist() == [certain, 0.85]  # what is written down is the model's own


def test_commit_last_counts_what_the_debts_leave() -> None:
    """Both errors pass (2 * 0.1, 3 * 0.2), and the third fails by its debt; commit_last takes it, being the last."""
    game, weights = Game(Static(), 3), torch.zeros(1, 5, 5, dtype=torch.float64)
    weights[0, PROMPT + 2, PROMPT:] = 1.0
    view = with_attention(game.view([0.9, 0.8, 0.76]), weights)
    assert committed(Factor(1.0, False), view) == {2, 3, 4}
    assert committed(Adas(Factor(1.0, False)), view) == {2, 3}
    assert committed(Adas(Factor(1.0, True)), view) == {2, 3, 4}


def test_rows_do_not_wait_for_each_other() -> None:
    """A row that chooses two beside one that chooses seven."""
    views = [made_up(seed)[0] for seed in (1, 2)]
    rule = Adas(Confidence(0.6), 3.0)
    for view in views:
        wide = replace(view.scores, confidence=torch.ones_like(view.scores.confidence))
        game = Game(Static(), LENGTH, rows=2)
        both = game.view(0.5)
        found = view.scores
        first = found.of(AttentionMap())
        together = replace(
            both.scores,
            confidence=torch.cat([found.confidence, wide.confidence]),
            readings={
                AttentionMap(): replace(
                    first, columns=first.columns.repeat(2, 1), weights=first.weights.repeat(2, 1, 1), received=None
                )
            },
        )
        canvas, open_ = replace(both.canvas, masked=view.canvas.masked.repeat(2, 1)), view.open.repeat(2, 1)
        both = replace(both, canvas=canvas, open=open_, scores=together)
        assert committed(rule, both) == committed(rule, view)


@pytest.mark.parametrize("cache", [NoCache(), Prefix(), Dual()], ids=type)
def test_every_candidate_has_its_own_weights(cache: Cache) -> None:
    """Drafts change nothing of what a rule decodes, so it must see in each of them what it would see alone. Under dual
    and prefix candidates lie side by side in a row, and share what they do not compute."""
    rule = Adas(Static(per_step=2), 30.0, 2)
    plain, drafted, other = (
        results(model("tiny-llada"), Parts(one, Fixed(8), cache, FullLength()), requests())
        for one in (rule, FreeDave(rule, 3), Static(per_step=2))
    )
    assert [row.canvas for row in plain] == [row.canvas for row in drafted]
    assert [row.turns for row in plain] != [row.turns for row in other]
    assert sum(row.nfe for row in drafted) < sum(row.nfe for row in plain)


@pytest.mark.parametrize("cache", [NoCache(), Dual()], ids=type)
def test_static_shapes_give_the_same_tokens(cache: Cache) -> None:
    parts = Parts(Adas(Static(per_step=3), 30.0), Fixed(8), cache, FullLength())
    exact, *bounded = (results(model("tiny-llada"), parts, requests(), lag=lag) for lag in (None, 0, 1))
    for found in bounded:
        assert [(row.canvas, row.turns) for row in found] == [(row.canvas, row.turns) for row in exact]


@pytest.mark.parametrize(
    "inner",
    [
        Static(score="random"),
        Static(score="margin"),
        Dream("origin"),
        Dream(alg_temp=0.5),
        LocalLeap(),
        BACD(),
        PC(),
        Saber(),
        FreeDave(Static()),
    ],
)
def test_rules_that_go_by_something_else_are_refused(inner: Sampler) -> None:
    with pytest.raises(UserError, match="^sampler=adas adds to the error .* by something else.* Use an inner .*eb"):
        Adas(inner)


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(UserError, match=r"^sampler\.weight=-1 must lie in .* 0 is the inner rule"):
        Adas(Confidence(), -1)
    for layers, words in ((0, "must be at least 1"), (5, "is more than the 4 layers of this model")):
        with pytest.raises(UserError, match=rf"^sampler\.layers={layers} {words}.*(null|None)"):
            validate(
                Setting(model("tiny-llada").config, Fixed(8), 16),
                Adas(Confidence(), layers=layers),
                NoCache(),
                FullLength(),
            )
