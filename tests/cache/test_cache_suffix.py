"""Masks behind the open blocks that are left out: which, how often, and that they are as if they were not there."""

from __future__ import annotations

from dataclasses import replace
from math import exp, pi, sqrt
from typing import Any

import pytest
import torch
from harness import forward_of, model, requests
from test_caches import canvases

from dllm import UserError
from dllm.parts import (
    Canvas,
    Confidence,
    Dual,
    Fixed,
    FullLength,
    NoCache,
    NoCacheMemory,
    Parts,
    Prefix,
    Pruning,
    Request,
    Sampling,
    Static,
    Turn,
    Visible,
    denoise,
)

KINDS: tuple[type[Pruning], ...] = (NoCache, Prefix, Dual)
BOTH = ["tiny-llada", "tiny-dream"]
DRAWS = {"gaussian": {"suffix_tail": 0}, "uniform": {"suffix_count": 3}}


def run(name: str, batch: list[Request], policy: Pruning) -> list[Turn]:
    parts = Parts(Static(), Fixed(8), policy, FullLength())
    forward = forward_of(model(name), parts, Sampling())
    with torch.inference_mode():
        return list(denoise(Canvas.of(batch, 61), forward, replace(parts, eos=FullLength())))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BOTH)
def test_forwards_compute_and_see_what_stays(name: str, kind: type[Pruning]) -> None:
    """11 + 24 columns, blocks of 8, one token a forward; of the masks behind a block the next 4 and the last stay."""
    shift, stays = int(name == "tiny-dream"), {0: 5, 1: 5, 2: 0}
    for turn, one in enumerate(run(name, requests()[:1], kind(suffix_window=4))):
        number, opens = turn // 8, turn % 8 == 0
        keys = 11 + 8 * (number + 1) + stays[number]
        later = {NoCache: keys, Prefix: 8 + shift + stays[number], Dual: 8 + shift}[kind]
        assert int(one.cost.keys) == keys and int(one.cost.queries) == (keys if opens else later)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("drop", ["none", *DRAWS])
def test_what_is_left_out_might_as_well_not_be_there(name: str, drop: str) -> None:
    """The forward that opens a block scores what the network scores of the other columns alone, at their positions."""
    options: dict[str, Any] = {"suffix_window": 6, "suffix_drop": drop, **DRAWS.get(drop, {})}
    policy = NoCache(**options)
    one, network = requests()[1], model(name)
    canvas, blocks = Canvas.of([one], 61), Fixed(8).start(Canvas.of([one], 61))
    columns = (~policy.dropped(canvas, blocks, canvas.no_positions))[0].nonzero()[:, 0]
    assert len(columns) < len(one.tokens)
    with torch.inference_mode():
        hidden, _ = network(canvas.tokens[:, columns], canvas.positions, NoCacheMemory(Visible()), columns[None])
        logits = network.logits(hidden)[0]
        logits[:, 60] = -torch.inf
    sure = dict(zip(columns.tolist(), logits.double().softmax(-1).amax(-1).tolist(), strict=True))
    shift = network.config.prediction_shift
    for kind in KINDS:
        scores = run(name, [one], kind(**options))[0].view.scores
        for column in scores.scored[0].nonzero()[:, 0].tolist():
            assert abs(float(scores.confidence[0, column]) - sure[column - shift]) < 1e-12


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("kind", KINDS)
def test_a_window_as_long_as_the_answer_leaves_nothing_out(kind: type[Pruning], name: str) -> None:
    expected = canvases(name, Confidence(), Fixed(8), kind())
    assert canvases(name, Confidence(), Fixed(8), kind(suffix_window=24)) == expected
    assert canvases(name, Confidence(), Fixed(8), kind(suffix_window=0)) != expected


@pytest.mark.daily(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drop", DRAWS)
def test_a_row_draws_the_same_alone_and_in_a_batch(drop: str, kind: type[Pruning]) -> None:
    rows, policy = requests(), kind(suffix_window=9, suffix_drop=drop, **DRAWS[drop])
    together = [
        (int(turn.canvas.row_id[row]), turn.cost.keys[row].tolist(), turn.candidates.tokens[row].tolist())
        for turn in run("tiny-dream", rows, policy)
        for row in range(len(turn.canvas.row_id))
    ]
    for number, request in enumerate(rows):
        alone = run("tiny-dream", [request], policy)
        mine = [(keys, tokens) for row, keys, tokens in together if row == number]
        assert [keys for keys, _ in mine] == [turn.cost.keys[0].tolist() for turn in alone]
        length = len(request.tokens)
        assert [tokens[:length] for _, tokens in mine] == [turn.candidates.tokens[0].tolist() for turn in alone]


def many(policy: Pruning, rows: int = 3000) -> torch.Tensor:
    """What stays of 20 masks behind the first block, in rows of other seeds [rows, 20]."""
    canvas = Canvas.of([Request([1] + [60] * 24, [False] + [True] * 24, seed, 1) for seed in range(rows)], 61)
    return ~policy.dropped(canvas, Fixed(4).start(canvas), canvas.no_positions)[:, 5:]


def test_the_share_that_stays_falls_as_a_gaussian() -> None:
    stays = many(NoCache(suffix_window=12, suffix_drop="gaussian", suffix_tail=0, suffix_sigma=3.0, suffix_scale=2.0))
    for x, share in enumerate(stays.double().mean(0).tolist()):
        expected = 2 * exp(-((x * 3 / 11) ** 2) / 2) / sqrt(2 * pi) if x < 12 else 0.0
        assert abs(share - expected) < 4 * sqrt(0.25 / len(stays))
    together = (stays[:, 0] & stays[:, 1]).double().mean() - stays[:, 0].double().mean() * stays[:, 1].double().mean()
    assert abs(float(together)) < 4 * 0.25 / sqrt(len(stays)), "columns are drawn one by one"
    surely = NoCache(suffix_window=3, suffix_drop="gaussian", suffix_scale=9.0, suffix_sigma=0.0)
    assert bool(many(surely, 9)[:, :3].all())


def test_so_many_stay_as_uniform_counts() -> None:
    stays = many(NoCache(suffix_window=8, suffix_drop="uniform", suffix_count=3, suffix_tail=2))
    assert stays[:, :8].sum(1).eq(3).all() and stays[:, 18:].all() and not stays[:, 8:18].any()
    assert all(abs(share - 3 / 8) < 0.04 for share in stays[:, :8].double().mean(0).tolist())
    assert many(NoCache(suffix_window=2, suffix_drop="uniform", suffix_count=3, suffix_tail=0), 9).sum(1).eq(2).all()


def test_text_that_is_given_behind_the_block_stays() -> None:
    tokens = [62, 51, 3, 55] + [60] * 8 + [7, 8] + [60] * 10
    request = Request(tokens, [token == 60 for token in tokens], start=4)
    canvas = Canvas.of([request], 61)
    dropped = Prefix(suffix_window=2, suffix_tail=0).dropped(canvas, Fixed(4).start(canvas), canvas.no_positions)
    assert dropped[0].nonzero()[:, 0].tolist() == [10, 11, *range(14, 24)]
    assert all(int(turn.cost.keys) >= 12 for turn in run("tiny-llada", [request], Prefix(suffix_window=0)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"suffix_window": -1}, "None keeps all of them"),
        ({"suffix_tail": -1}, "suffix_tail=-1"),
        ({"suffix_window": 8, "suffix_drop": "gauss"}, "Did you mean 'gaussian'"),
        ({"suffix_drop": "uniform"}, "suffix_window=None has no end"),
        ({"suffix_scale": -1.0}, "suffix_scale=-1"),
        ({"suffix_sigma": -1.0}, "suffix_sigma=-1"),
        ({"suffix_count": -1}, "suffix_count=-1"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    for kind in KINDS:
        with pytest.raises(UserError, match=message):
            kind(**options)
