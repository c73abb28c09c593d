"""cache=span: what a cut forward computes, and that what is cut off might as well not be there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from harness import Combination, forward_of, parts_of, results

from dllm.parts import (
    Canvas,
    FullLength,
    NoCacheMemory,
    Parts,
    Request,
    Sampling,
    SlowFast,
    SpanCache,
    Turn,
    Visible,
    Whole,
    denoise,
    network,
    requests,
)

PARTS = Parts(SlowFast(low=0.6, explore=1, window=1), Whole(), SpanCache(), FullLength())
# thresholds under which models of random weights have short spans
SHORT = {"llada": SlowFast(0.8, 1.0, explore=1, window=1), "dream": SlowFast(0.97, 0.99, explore=1, window=1)}


def run(name: str, request: Request) -> list[Turn]:
    parts = replace(PARTS, sampler=SHORT[name])
    with torch.inference_mode():
        return list(denoise(Canvas.of([request], 0), forward_of(network(name), parts, Sampling()), parts))


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_what_is_cut_off_might_as_well_not_be_there(name: str) -> None:
    """Scores of every forward are the network's on the columns up to the span's end, and 1 in 3 forwards is cut."""
    one, model, cut = requests()[0], network(name), 0
    shift = model.config.prediction_shift
    for turn in (found := run(name, one)):
        width = int(turn.cost.queries)
        with torch.inference_mode():
            memory = NoCacheMemory(Visible())
            logits = model.logits(model(turn.canvas.tokens[:, :width], turn.canvas.positions[:, :width], memory)[0])
            logits[..., 15] = -torch.inf
        sure, scores = logits.double().softmax(-1).amax(-1)[0], turn.view.scores
        for column in scores.scored[0].nonzero()[:, 0].tolist():
            assert abs(float(scores.confidence[0, column]) - float(sure[column - shift])) < 1e-12
        cut += width < len(one.tokens)
        assert int(turn.cost.keys) == width
    assert cut > len(found) // 3


def test_text_that_was_given_after_the_span_stays() -> None:
    tokens = [*requests()[0].tokens, 7, 9, 11]
    request = Request(tokens, [token == 15 for token in tokens], infill=True)
    widths = {int(turn.cost.queries) for turn in run("dream", request)}
    assert max(widths) == len(tokens) and min(widths) < len(tokens) - 3
    turn = next(turn for turn in run("dream", request) if int(turn.cost.queries) < len(tokens))
    assert turn.cost.queries.equal(turn.cost.keys)
    assert int(turn.view.scores.scored[0].sum()) < int(turn.canvas.undecided.sum())


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(guidance=1.5)], ids=["plain", "guided"])
def test_fixed_shapes_and_batches_decode_the_same(sampling: Sampling) -> None:
    model = network("llada")
    alone = [results(model, PARTS, [one], sampling)[0].canvas for one in requests()]
    for lag in (None, 0, 1):
        assert [one.canvas for one in results(model, PARTS, requests(), sampling, lag)] == alone
    assert alone != [
        results(model, replace(PARTS, cache=parts_of(Combination("slowfast", "fixed")).cache), [one], sampling)[
            0
        ].canvas
        for one in requests()
    ]
