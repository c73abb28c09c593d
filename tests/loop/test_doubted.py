"""Guidance against doubted tokens (``sampling.guidance_against=doubted``): two forwards, of which the first decides the
second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import Combination, forward_of, model, parts_of, requests, results

from dllm import UserError
from dllm.parts import Canvas, Request, Sampling, Trace, Transformer, denoise, network, recorded
from dllm.parts import requests as short_requests

DOUBTED = Sampling(guidance=1.5, guidance_against="doubted", guidance_ratio=0.3)


def plainly(network: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [L, V] that predict each position, all columns computed."""
    with torch.inference_mode():
        logits = network.logits(network.encode(tokens[None]))[0]
    shift = network.config.prediction_shift
    return torch.cat([logits[:1], logits[:-1]]) if shift else logits


@pytest.mark.parametrize("kind", ["llada", "dream"])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_every_turn_mixes_two_plain_forwards(kind: str, ratio: float) -> None:
    one, tiny = short_requests()[0], network(kind)
    sampling = replace(DOUBTED, guidance_ratio=ratio)
    parts = parts_of(Combination("confidence", "fixed"))
    with torch.inference_mode():
        turns = list(denoise(Canvas.of([one], 0), forward_of(tiny, parts, sampling), parts))
    for turn in turns:
        tokens, decided = turn.canvas.tokens[0], turn.canvas.committed[0].nonzero()[:, 0].tolist()
        sure = plainly(tiny, tokens).softmax(-1).amax(-1)
        worst = sorted(decided, key=lambda at: (float(sure[at]), at))[: max(1, int(ratio * len(decided)))]
        worse = tokens.clone()
        worse[worst] = 15
        c, u = plainly(tiny, tokens), plainly(tiny, worse)
        mixed = u + 2.5 * (c - u)
        mixed[:, 15] = -torch.inf
        scores = turn.view.scores
        assert scores.statistic("doubted")[0].nonzero()[:, 0].tolist() == sorted(worst)
        for at in scores.scored[0].nonzero()[:, 0].tolist():
            assert float(scores.confidence[0, at]) == pytest.approx(float(mixed[at].softmax(-1).amax()), abs=1e-11)
        assert int(turn.cost.queries) == 2 * len(tokens) and turn.cost.copies == 2
        assert int(turn.cost.scored) == 2 * int(scores.scored.sum()) + len(decided)


def test_a_trace_names_the_doubted_positions() -> None:
    parts = parts_of(Combination("confidence", "fixed"), DOUBTED)
    turns = list(denoise(Canvas.of(requests(), 0), forward_of(model("tiny-llada"), parts, DOUBTED), parts))
    row, start = 1, requests()[1].answer_start
    seen = [turn for turn in turns if row in turn.canvas.row_id.tolist()]
    wanted = [turn.view.scores.statistic("doubted")[turn.canvas.row_id.tolist().index(row)] for turn in seen]
    (_, one, _) = recorded(model("tiny-llada"), parts, requests(), DOUBTED)
    assert one.final.trace is not None
    told = [record.doubted for record in one.final.trace.turns]
    assert (
        told == [[at - start for at in each.nonzero()[:, 0].tolist()] for each in wanted] and not told[0] and told[-1]
    )
    assert Trace.from_json(one.final.trace.to_json()).turns == one.final.trace.turns


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
@pytest.mark.parametrize("lag", [None, 0, 1])
def test_rows_decode_as_they_do_alone_under_every_shape(name: str, lag: int | None) -> None:
    parts = parts_of(Combination("localleap", "fixed", eos="stop_at_eos"), DOUBTED)
    alone = [results(model(name), parts, [one], DOUBTED)[0].canvas for one in requests()]
    assert [one.canvas for one in results(model(name), parts, requests(), DOUBTED, lag)] == alone
    assert alone != [one.canvas for one in results(model(name), parts, requests(), replace(DOUBTED, guidance=0.0))]


def test_text_that_was_given_is_never_doubted() -> None:
    tokens = [62, 51, 60, 60, 7, 60, 60, 9]
    request = Request(tokens, [token == 60 for token in tokens], infill=True)
    parts = parts_of(Combination("static", "whole"), DOUBTED)
    with torch.inference_mode():
        turns = list(denoise(Canvas.of([request], 61), forward_of(model("tiny-llada"), parts, DOUBTED), parts))
    assert not any(bool((turn.view.scores.statistic("doubted") & turn.canvas.given).any()) for turn in turns)
    assert [int(turn.view.scores.statistic("doubted").sum()) for turn in turns] == [0, 1, 1, 1]


@pytest.mark.parametrize("wrong", [{"guidance_against": "all"}, {"guidance_ratio": 1.5}])
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"^{next(iter(wrong))}="):
        Sampling(**wrong)
