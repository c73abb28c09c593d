"""What a trace says of every commit, against a forward of one's own on the canvas that the trace redraws."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from dllm import Decoder, load, part
from dllm.parts import (
    Commits,
    Credit,
    DecisionCount,
    Model,
    Pane,
    Sampler,
    Static,
    Trace,
    trace_differences,
    trace_page,
)
from tests.support.bits import bits

PROMPT = 'Shuffle the list:\n["Kai", "Emma", "Hugo", "Nell"]'
SQUARE = "Latin square:\nA,B,C,D"  # where the model is unsure


@pytest.fixture(scope="module")
def model() -> Model:
    return load("mini-llada", dtype="float64")


def traced(model: Model, sampler: Sampler, observe: Any = None, prompt: str = PROMPT, **options: Any) -> Trace:
    decoder = Decoder(model, sampler, "whole", eos="none", gen_length=24, **options)
    return decoder(prompt, trace=True, observe=observe)[0].traced()


def truths(model: Model, trace: Trace) -> list[list[tuple[float | None, float, bool]]]:
    """Of every commit of every candidate, by turn: what the trace says of its probability, what a forward says, and
    whether it is the forward's first choice."""
    out = []
    for record, canvas in zip(trace.turns, trace.canvases(), strict=False):
        with torch.inference_mode():
            logits = model.transformer.head(model.transformer.encode(torch.tensor([canvas])))[0].double()
            logits[:, model.ids.mask] = -torch.inf
        chances = logits.softmax(-1)
        out.append(
            [
                (
                    said,
                    float(chances[trace.start + position, token]),
                    token == int(logits[trace.start + position].argmax()),
                )
                for commits in record.candidates
                for position, token, said, _, _ in commits.rows()
            ]
        )
    return out


def oracle(model: Model) -> Sampler:
    """Told a text that the model did not choose, so that it must write tokens against the model's first choice."""
    other = Decoder(model, "static", "whole", eos="none", gen_length=24)('Copy the list:\n["Nell", "Hugo"]')[0]
    made: Sampler = part("sampler", "oracle", reference=[other.canvas])
    return made


def test_the_probability_is_that_of_the_token_that_was_written(model: Model) -> None:
    for name in ("static", "confidence", "ete"):
        said = [one for turn in truths(model, traced(model, part("sampler", name), prompt=SQUARE)) for one in turn]
        assert all(p == pytest.approx(truth, rel=1e-9) for p, truth, _ in said), name
    assert any(not first for _, _, first in said), "ete tried another token than the first choice"


def test_where_nobody_knows_the_probability_the_trace_says_nothing(model: Model) -> None:
    stubborn = Credit(Static(), beta=1.0, gamma=0.0, alpha=20.0)
    for sampler in (oracle(model), stubborn):
        said = [one for turn in truths(model, traced(model, sampler, prompt=SQUARE)) for one in turn]
        assert all(p == pytest.approx(truth, rel=1e-9) if first else p is None for p, truth, first in said)
        assert any(p is None for p, _, _ in said)


def test_bits_are_those_of_the_known_probabilities(model: Model) -> None:
    for sampler in (part("sampler", "ete"), oracle(model)):
        tally = DecisionCount()
        trace = traced(model, sampler, tally)
        counted = tally.columns(0)["bits"]
        assert counted == pytest.approx(bits(trace), abs=1e-4) and len(counted) == len(trace.turns)
        said = zip(truths(model, trace), trace.turns, bits(trace), strict=True)
        for turn, record, found in said:
            if len(record.candidates) == 1:
                assert found == pytest.approx(sum(-math.log2(p) for p, _, _ in turn if p is not None), abs=1e-9)


def test_confidences_that_are_set_aside_are_not_known(model: Model) -> None:
    tally = DecisionCount()
    trace = traced(model, part("sampler", "confidence"), tally, eos_last=True)
    commits = [row for record in trace.turns for row in record.candidates[0].rows()]
    assert {p is None for _, token, p, _, _ in commits if token == model.ids.eos} == {True}
    assert any(p is not None for _, _, p, _, _ in commits) and max(tally.columns(0)["bits"]) < 50


def test_an_unknown_probability_goes_through_file_frame_page_and_replay(model: Model) -> None:
    trace = traced(model, oracle(model))
    read = Trace.from_json(json.loads(json.dumps(trace.to_json(), allow_nan=False)))
    assert read == trace and list(trace_differences(read, trace)) == []
    unknown = [p is None for record in trace.turns for p in record.candidates[0].confidence]
    assert trace.to_frame().confidence.isna().tolist() == unknown and any(unknown)
    assert '"p":[null' in trace_page([Pane("oracle", trace)])
    first = next(record for record in trace.turns if None in record.candidates[0].confidence)
    was = first.candidates[0]
    first.candidates[0] = Commits(was.positions, was.tokens, [0.5] * len(was.tokens), was.forced, was.entropy)
    assert ["confidence=None" in found for found in trace_differences(read, trace)][:1] == [True]


def test_what_a_plan_commits_is_forced_alone_as_in_a_batch() -> None:
    """Where Dream's cache computes no column before the block, its first column is committed with the full forward,
    while other rows of the batch go by their rule."""
    cache, blocks = part("cache", "prefix", query_left=False), part("blocks", "fixed", block_length=8)
    decoder = Decoder(load("mini-dream"), "confidence", blocks, cache, gen_length=32, batch_size=2)
    prompts = [PROMPT, SQUARE]
    together = [one.traced().turns for one in decoder(prompts, trace=True)]
    alone = [decoder(prompt, trace=True)[0].traced().turns for prompt in prompts]
    forced = [[turn.candidates[0].forced for turn in turns] for turns in together]
    assert forced == [[turn.candidates[0].forced for turn in turns] for turns in alone]
    assert all(any(map(any, one)) for one in forced)
