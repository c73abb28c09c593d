"""dawn: what is sure, what is induced, and of the rest what does not attend to each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import model, requests, results
from torch import Tensor

from dllm import UserError
from dllm.parts import Cache, Dawn, Dual, Fixed, FullLength, NoCache, Parts, Setting, View, validate
from tests.samplers.game import PROMPT, Game, positions, with_attention

LENGTH = 7
COLUMNS = PROMPT + LENGTH


def literally(
    confidence: list[float],
    open_: list[bool],
    masked: list[bool],
    weights: list[list[float]],
    received: list[float],
    sure: float,
    induced: float,
    low: float,
    edge: float,
    sink: float,
) -> set[int]:
    """The published steps, in loops over columns. All columns lie left of the block's end."""
    columns = range(len(confidence))
    a = [[0 if received[j] > sink or i == j else weights[i][j] for j in columns] for i in columns]
    edges = {(i, j) for i in columns for j in columns if a[i][j] >= edge}
    free = [i for i in columns if open_[i]]
    high = {i for i in free if confidence[i] >= sure}
    anchors = {j for j in columns if not masked[j] and confidence[j] >= sure}
    led = {i for i in free if confidence[i] >= induced and any((i, j) in edges for j in anchors)}
    out = {i for i in free if any((i, j) in edges for j in high) and any((i, j) in edges for j in led)}
    rest, chosen = {i for i in free if confidence[i] >= low} - high - led - out, set[int]()
    while rest:
        best = min(rest, key=lambda i: (-confidence[i], i))
        chosen.add(best)
        rest = {i for i in rest if i != best and (i, best) not in edges and (best, i) not in edges}
    found = high | led | chosen
    return found or {min(free, key=lambda i: (-confidence[i], i))}


def made_up(seed: int) -> tuple[View, Tensor, Tensor]:
    """Some masks of an answer of 7, confidences with many ties, weights of 0 to 0.3."""
    noise = torch.Generator().manual_seed(seed)
    game = Game(Dawn(), LENGTH)
    game.commit(torch.randperm(LENGTH, generator=noise)[: int(torch.randint(0, 5, (), generator=noise))].tolist())
    confidence = torch.randint(4, 11, (1, COLUMNS), generator=noise) / 10
    weights = torch.randint(0, 7, (1, COLUMNS, COLUMNS), generator=noise) / 20
    view = game.view(0.0)
    scores = replace(view.scores, confidence=confidence.double(), scored=view.canvas.valid)
    return replace(view, scores=scores), weights.double(), weights.double().mean(1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"edge": 0.25, "sink": 0.2},
        {"edge": 0.15, "sink": 0.17, "low_threshold": 0.5, "induced_threshold": 0.6},
        {"edge": 0.3, "sink": 1.0, "low_threshold": 0.4, "induced_threshold": 1.1, "threshold": 1.0},
        {"edge": 0.2, "sink": 1.0, "low_threshold": 0.4, "induced_threshold": 0.8, "threshold": 0.8},
    ],
)
def test_a_turn_is_the_published_steps_on_made_up_attention(options: dict[str, Any]) -> None:
    rule, sizes = Dawn(**options), set[int]()
    for seed in range(60):
        view, weights, received = made_up(seed)
        if not view.open.any():
            continue
        view = with_attention(view, weights, received)
        step = rule.propose(view, rule.start(view.canvas, Fixed(LENGTH)))
        expected = literally(
            view.scores.confidence[0].tolist(),
            view.open[0].tolist(),
            view.canvas.masked[0].tolist(),
            weights[0].tolist(),
            received[0].tolist(),
            rule.threshold,
            rule.induced_threshold,
            rule.low_threshold,
            rule.edge,
            rule.sink,
        )
        assert set(step.commit[0].nonzero()[:, 0].tolist()) == expected, seed
        sizes.add(len(expected))
    assert len(sizes) > 2


def turn(
    confidence: list[float], edges: list[tuple[int, int]], given: tuple[float, float] = (0, 0), **options: Any
) -> tuple[list[int], list[int]]:
    """What a row commits, and what of that it accepts. given: confidences of the prompt, whose columns are -2 and -1.
    edges: between columns."""
    rule, game = Dawn(**{"sink": 1.0, **options}), Game(Dawn(), len(confidence))
    view, size = game.view(confidence), PROMPT + len(confidence)
    sure = view.scores.confidence.clone()
    sure[0, :PROMPT] = torch.tensor(given, dtype=torch.float64)
    weights = torch.zeros(1, size, size, dtype=torch.float64)
    for i, j in edges:
        weights[0, i + PROMPT, j + PROMPT] = 0.07 if i != j else 1.0
    view = replace(view, scores=replace(view.scores, confidence=sure, scored=view.canvas.valid))
    step = rule.propose(with_attention(view, weights), rule.start(view.canvas, Fixed(9)))
    assert step.accepted is not None
    return positions(step.commit)[0], positions(step.accepted)[0]


def test_neighbours_are_not_taken_together_and_the_surest_goes_first() -> None:
    assert turn([0.8, 0.85, 0.8], [])[0] == [0, 1, 2]
    assert turn([0.8, 0.85, 0.8], [(0, 1)])[0] == [1, 2]
    assert turn([0.8, 0.85, 0.8], [(1, 0), (2, 1)])[0] == [1]  # in either direction
    assert turn([0.8, 0.8, 0.8], [(0, 1), (1, 2)])[0] == [0, 2]  # of equals the first, which frees the third
    assert turn([0.95, 0.85, 0.5], [(1, 0)])[0] == [0, 1]  # what is sure excludes nobody by itself


def test_an_anchor_induces_if_the_model_is_sure_of_it() -> None:
    assert turn([0.72, 0.5], [(0, -1)], (0, 0.9)) == ([0], [0])
    assert turn([0.72, 0.73], [(0, -1)], (0, 0.89)) == ([1], [])  # forced: nothing is accepted
    assert turn([0.72, 0.5], [(-1, 0)], (0, 1.0)) == ([0], [])
    assert turn([0.95, 0.72, 0.8], [(1, -1), (2, 0), (2, 1)], (0, 1.0))[0] == [0, 1]  # 2 leans on both kinds
    assert turn([0.95, 0.72, 0.8], [(1, -1), (2, 1)], (0, 1.0))[0] == [0, 1, 2]


def test_a_sink_counts_for_nothing_and_what_it_gives_itself_makes_it_one() -> None:
    edges = [(0, 1), (1, 1)]
    assert turn([0.85, 0.8], edges, sink=0.3)[0] == [0]
    assert turn([0.85, 0.8], edges, sink=0.2)[0] == [0, 1]  # 1.07 of 4 rows; without the diagonal 0.07 of 4


def test_thresholds_above_one_leave_the_confidence_rule() -> None:
    for seed in range(40):
        view, weights, received = made_up(seed)
        if not view.open.any():
            continue
        rule = Dawn(0.8, 1.01, 1.01)
        step = rule.propose(with_attention(view, weights, received), rule.start(view.canvas, Fixed(LENGTH)))
        sure = view.open & (view.scores.confidence >= 0.8)
        assert torch.equal(step.commit, sure) or (not sure.any() and int(step.commit.sum()) == 1)


@pytest.mark.parametrize("cache", [NoCache(), Dual()], ids=type)
def test_static_shapes_give_the_same_tokens(cache: Cache) -> None:
    parts = Parts(Dawn(low_threshold=0.3, induced_threshold=0.5), Fixed(8), cache, FullLength())
    exact, *bounded = (results(model("tiny-llada"), parts, requests(), lag=lag) for lag in (None, 0, 1))
    for found in bounded:
        assert [(row.canvas, row.turns) for row in found] == [(row.canvas, row.turns) for row in exact]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("threshold", 1.2),
        ("low_threshold", -0.1),
        ("induced_threshold", -1),
        ("edge", 2.0),
        ("sink", -0.5),
        ("layers", 0),
        ("layers", 5),
    ],
)
def test_options_out_of_range_are_refused(option: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"^sampler\.{option}={value} (must|is more than the 4 layers)"):
        validate(Setting(model("tiny-llada").config, Fixed(8), 16), Dawn(**{option: value}), NoCache(), FullLength())
