"""Answers that change their length: alone and in batches, traced, refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dllm import Decoder, load, part
from dllm.parts import (
    NOTHING_SHARED,
    Canvas,
    Daedal,
    Ids,
    Model,
    Owner,
    Request,
    Scores,
    Trace,
    UserError,
    View,
    end_confidence,
)

PROMPTS = [
    'Copy the list:\n["Kai", "Emma", "Hugo", "Ada", "Zoe"]',
    'Sort the list:\n["Kai", "Ada"]',
    'Copy the list:\n["Kai"]',
    'Reverse the list:\n["Kai", "Ada", "Emma"]',
]
PARTS: dict[str, dict[str, Any]] = {
    "daedal": {"factor": 3, "checked": 4},
    "rho_eos": {"factor": 4, "checked": 4, "low": 0.2, "high": 0.9},
}


@pytest.fixture(scope="module")
def model() -> Model:
    return load("mini-llada")


def decoder(model: Model, length: str, batch_size: int = 1, **more: Any) -> Decoder:
    chosen = part("length", length, **PARTS[length])
    assert chosen is not None
    return Decoder(model, length=chosen, eos="none", **{"gen_length": 5, "batch_size": batch_size, **more})


# bacd remembers counts of a block, one for a row
@pytest.mark.parametrize(
    ("length", "sampler"), [("daedal", "confidence"), ("rho_eos", "confidence"), ("rho_eos", "bacd")]
)
def test_rows_decode_in_a_batch_as_alone_while_others_join_and_leave(model: Model, length: str, sampler: str) -> None:
    together = decoder(model, length, 3, sampler=sampler)(PROMPTS, trace=True)
    alone = decoder(model, length, sampler=sampler)
    assert len({len(result.canvas) for result in together}) > 1
    for prompt, result in zip(PROMPTS, together, strict=True):
        (own,) = alone(prompt, trace=True)
        assert (own.canvas, own.turns, own.nfe, own.query_tokens) == (
            result.canvas,
            result.turns,
            result.nfe,
            result.query_tokens,
        )
        assert [turn.length for turn in own.traced().turns] == [turn.length for turn in result.traced().turns]
        assert [turn.candidates for turn in own.traced().turns] == [turn.candidates for turn in result.traced().turns]


@pytest.mark.parametrize("length", PARTS)
def test_a_trace_says_every_canvas_and_is_read_again(model: Model, length: str) -> None:
    rows = decoder(model, length)
    result = rows(PROMPTS[0], trace=True)[0]
    *before, last = result.traced().canvases()
    seen = [turn.canvas.tokens[0, turn.canvas.valid[0]].tolist() for turn in rows.turns(PROMPTS[0])]
    assert before == seen and last == [*result.prompt_tokens, *result.canvas]
    assert Trace.from_json(result.traced().to_json()).turns == result.traced().turns
    assert any(turn.length for turn in result.traced().turns)


def test_a_stream_shows_the_canvas_grow(model: Model) -> None:
    *grown, last = decoder(model, "daedal").stream(PROMPTS[0])
    assert [len(one.tokens) for one in (*grown, last)] == sorted(len(one.tokens) for one in (*grown, last))
    assert len(grown[0].tokens) == 5 + 3 and last.text == PROMPTS[0].partition("\n")[2]


def test_end_confidence_averages_the_last_ends() -> None:
    canvas = Canvas.of([Request.answer([1], 6, 60), Request.answer([1, 2], 3, 60)], 61)
    token, sure = torch.full((2, 7), 9), torch.rand(2, 7, dtype=torch.float64)
    token[0, [0, 2, 4, 5]] = token[1, [1, 2, 4]] = 61
    scores = Scores(canvas.valid, token, sure, canvas.valid, {"likeliest": token, "first": sure})
    blocks = part("blocks", "whole").start(canvas)
    view = View.of(canvas, scores, blocks, None, Owner.single(2, sure.device), NOTHING_SHARED)
    wanted = [(sure[0, 4] + sure[0, 5]) / 2, (sure[1, 2] + sure[1, 4]) / 2]
    assert end_confidence(view, 61, 2).tolist() == torch.stack(wanted).float().tolist()
    wanted = [(sure[0, 2] + sure[0, 4] + sure[0, 5]) / 8, (sure[1, 2] + sure[1, 4]) / 8]
    assert torch.allclose(end_confidence(view, 61, 8), torch.stack(wanted).float())


@pytest.mark.parametrize(("average", "doubted"), [(0.5, 0.0), (0.25, 0.0), (0.25, 0.125), (0.0, 0.125)])
def test_daedal_grows_below_its_averages_and_expands_below_its_doubt(average: float, doubted: float) -> None:
    """Strictly below, as published. All numbers here are exact in binary."""
    canvas = Canvas.of([Request.answer([1], 4, 60)], 61)
    rule = Daedal(limit=20, factor=3, checked=2, sure_end=0.25, sure_end_inside=0.5, doubt=0.125).resolved(
        Ids(60, 61, ()), 100
    )
    sure, ends = torch.full((1, 5), average).double(), torch.full((1, 5), 61)
    scores = Scores(
        canvas.valid, ends, torch.full_like(sure, doubted), canvas.valid, {"likeliest": ends, "first": sure}
    )
    blocks = part("blocks", "whole").start(canvas)
    view = View.of(canvas, scores, blocks, None, Owner.single(1, sure.device), NOTHING_SHARED)
    step, state = view.step(canvas.no_positions), rule.start(canvas)
    before, _ = rule.change(canvas, view, step, state)
    assert int(before.append) == (3 if average < 0.25 else 0)
    inside, _ = rule.change(canvas, view, step, {**state, "grown": ~state["grown"]})
    assert int(inside.insert) == (2 if average < 0.5 and doubted < 0.125 else 0)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"gen_length": 9, "length": part("length", "daedal", limit=8)}, "length.limit=8 is less than gen_length=9"),
    ({"blocks": "sliding"}, "does not say where a block ends"),
    ({"cache": "prefix"}, "keeps keys and values by column"),
    ({"eos": "fill_after_block"}, "Use eos=none"),
    ({"sampler": "static"}, "plans how many turns"),
    ({"sampler": "wino"}, "Use sampler=confidence"),
    ({"sampler": "lopa"}, "offers several candidates"),
    ({"sampler": "slowfast"}, "keeps the columns of a span"),
    ({"guidance": 1.0}, "Set guidance=0"),
    ({"stop": ["]"]}, "Drop stop"),
    ({"runtime": "static"}, "Use runtime=eager"),
]


def test_options_that_cannot_work_are_refused() -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("daedal", {"factor": 1}, "length.factor=1 must be at least 2"),
        ("rho_eos", {"low": 0.7}, "at most length.high"),
        ("rho_eos", {"schedule": "log"}, "const, linear, exp"),
    ]
    for name, options, words in cases:
        with pytest.raises(UserError) as error:
            part("length", name, **options)
        assert words in str(error.value)


def test_auto_is_the_rule_for_the_model_and_takes_no_other(model: Model) -> None:
    auto = Decoder(model, gen_length="auto")
    assert [result.text for result in auto(PROMPTS[:3])] == [prompt.partition("\n")[2] for prompt in PROMPTS[:1]] + [
        '["Ada", "Kai"]',
        '["Kai"]',
    ]
    assert auto.settings["length"]["_target_"].endswith("RhoEos") and auto.settings["gen_length"] == 16
    with pytest.raises(UserError, match="gen_length=auto chooses a rule"):
        Decoder(model, gen_length="auto", length="rho_eos", eos="none")
    with pytest.raises(UserError, match="whole number, or auto"):
        Decoder(model, gen_length="long")


def test_a_request_with_text_after_its_gap_is_refused(model: Model) -> None:
    rows = decoder(model, "daedal")
    with pytest.raises(UserError, match="does not follow the columns"):
        rows(rows.infill(["a", 2, "b"]))
