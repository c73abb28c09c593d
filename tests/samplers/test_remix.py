"""ReMix's mixtures and divergences beside plain Python, and its laws."""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch
from harness import forward_of, model, requests

from dllm.parts import (
    LEAST_CHANCE,
    Canvas,
    Dual,
    Fixed,
    FullLength,
    NoCache,
    Parts,
    Prefix,
    ReMix,
    Sampling,
    Setting,
    Turn,
    denoise,
    jensen_shannon,
    mixture_of,
)


def test_tokens_of_a_mixture_reach_twice_the_largest_probability() -> None:
    for p, kept in [
        ([0.5, 0.3, 0.15, 0.05], 2),
        ([0.08] * 10 + [0.2], 3),
        ([0.95, 0.05], 1),
        ([0.45, 0.45, 0.1], 2),
        ([0.03] * 30 + [0.1], 4),
        ([0.3, 0.25, 0.2, 0.15, 0.1], 2),
    ]:
        tokens, shares = mixture_of(torch.tensor(p, dtype=torch.float64))
        assert int((shares > 0).sum()) == kept, p
        assert shares[0] == max(p) and p[int(tokens[0])] == max(p)


def test_a_mixture_that_was_taken_back_is_a_third_of_a_nat_from_anything() -> None:
    peak, flat = torch.zeros(64), torch.full((64,), 1 / 64)
    peak[3] = 1
    for other, expected in ((peak, 0.3466), (flat, 0.3465)):
        assert float(jensen_shannon(torch.zeros(64), other)) == pytest.approx(expected, abs=1e-4)
    assert float(jensen_shannon(peak, peak.roll(1))) == pytest.approx(log(2), abs=1e-4)
    assert float(jensen_shannon(flat, flat)) == pytest.approx(0, abs=1e-6)
    a, b = [max(x, LEAST_CHANCE) for x in peak.tolist()], [max(x, LEAST_CHANCE) for x in flat.tolist()]
    direct = sum(0.5 * (x * log(2 * x / (x + y)) + y * log(2 * y / (x + y))) for x, y in zip(a, b, strict=True))
    assert float(jensen_shannon(peak, flat)) == pytest.approx(direct, abs=1e-5)


def decoded(cache: Any, lag: int | None = None, rows: Any = None, **options: Any) -> list[Turn]:
    """Every turn of the usual requests, in blocks of 8."""
    network, blocks = model("tiny-llada"), Fixed(8)
    rule = ReMix(**options).resolved(Setting(network.config, blocks, None))
    parts = Parts(rule, blocks, cache, FullLength(), Sampling())
    with torch.inference_mode():
        canvas = Canvas.of(requests() if rows is None else rows, 61)
        return [
            replace(turn, candidates=replace(turn.candidates, tokens=turn.candidates.tokens.clone()))
            for turn in denoise(canvas, forward_of(network, parts, Sampling()), parts, lag)
        ]


def texts(turns: list[Turn]) -> dict[int, list[int]]:
    found = dict[int, list[int]]()
    for turn in turns:
        for row, name in enumerate(turn.candidates.row_id.tolist()):
            found[name] = turn.candidates.tokens[row][turn.candidates.valid[row]].tolist()
    return found


def test_a_share_of_nothing_and_a_rejection_of_everything_show_plain_masks() -> None:
    plain = decoded(NoCache(), mix=0.0, threshold=0.6)
    never = decoded(NoCache(), mix=0.0, threshold=0.6, js_threshold=0.0)
    assert texts(plain) == texts(never) and len(plain) == len(never)
    for turn in decoded(NoCache(), threshold=0.6, js_threshold=1.0):
        assert turn.step.mixture is not None and turn.step.mixture.rejected is not None
        assert not bool(turn.step.mixture.rejected.any())  # from ln 2 on nothing is taken back


@pytest.mark.program  # seconds
def test_rows_do_not_know_of_each_other_and_shapes_change_nothing() -> None:
    together = texts(decoded(NoCache(), threshold=0.6, js_threshold=0.1))
    assert texts(decoded(NoCache(), lag=0, threshold=0.6, js_threshold=0.1)) == together
    for number, one in enumerate(requests()):
        assert texts(decoded(NoCache(), rows=[one], threshold=0.6, js_threshold=0.1))[0] == together[number]
    assert texts(decoded(Prefix(), threshold=0.6)).keys() == together.keys()
    assert texts(decoded(Dual(), threshold=0.6, across=False)).keys() == together.keys()
