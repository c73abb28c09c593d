"""The Python interface: prompts in, results out."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from inspect import getsource
from pathlib import Path
from typing import Any

import pytest
import torch

from dllm import Decoder, UserError, load
from dllm.parts import STATISTICS, Model, Need, Prophet, Proposer, Request, Sampling, Scores, Static, Statistic, Turn


@pytest.fixture(scope="module")
def model(tiny: Path) -> Model:
    return load(tiny)


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, dllm; assert 'torch' not in sys.modules, 'torch'; print(dllm.UserError.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "UserError\n"


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("cache", ["none", "dual"])
def test_weights_that_are_no_numbers_are_not_decoded(tiny: Path, broken: float, cache: str) -> None:
    damaged = load(tiny, pack=False)
    with torch.no_grad():
        damaged.transformer.layers[1].mlp.down.weight[3, 2] = broken
    with pytest.raises(UserError, match="answers with numbers that are not finite: its weights are damaged"):
        Decoder(damaged, gen_length=16, cache=cache)("w1 w2")


def test_forbid_eos_bans_every_token_that_ends_a_text(model: Model) -> None:
    """A model of chat turns has several: <|endoftext|> and <|im_end|>. Its log-probabilities leave them out, too."""
    ends = (model.ids.eos, 7, 8, 9)
    several = replace(model, ids=replace(model.ids, stops=ends[1:]))
    options = {"gen_length": 64, "eos": "none", "sampler": "static", "temperature": 3.0}
    free, bound = (Decoder(several, **options, forbid_eos=forbid)("w1", seed=5)[0] for forbid in (False, True))
    assert set(ends) & set(free.canvas[-64:]) and not set(ends) & set(bound.canvas[-64:])
    logits = torch.zeros(1, 1, model.config.vocab)
    proposer = Proposer(Sampling(forbid_eos=True), several.ids)
    assert proposer.ban(logits)[0, 0].isinf().nonzero().flatten().tolist() == sorted({*ends, model.ids.mask})


def test_results_come_in_the_order_of_the_prompts_with_distinct_seeds(model: Model) -> None:
    decoder = Decoder(model, gen_length=24, batch_size=3, eos="stop_at_eos", temperature=1.0)
    prompts = ["w1 w2", "w3", "w4 w5 w6"]
    results = decoder(list(prompts), samples=2, seed=10)
    assert [result.prompt for result in results] == [prompt for prompt in prompts for _ in range(2)]
    assert [result.seed for result in results] == list(range(10, 16))
    alone = Decoder(model, gen_length=24, eos="stop_at_eos", temperature=1.0)("w4 w5 w6", seed=14)[0]
    assert alone.canvas == results[4].canvas


def test_rows_are_handed_out_when_they_finish(model: Model) -> None:
    decoder = Decoder(model, sampler="static", blocks="whole", eos="none", batch_size=3)
    lengths = [9, 3, 6]
    requests = [decoder.infill(["w1", length]) for length in lengths] + [decoder.infill(["w1", 1])]
    assert [number for number, _ in decoder.run(requests)] == [1, 3, 2, 0]  # the fourth joins when the second ends


def test_time_spent_watching_and_taking_results_is_not_decoding_time(model: Model) -> None:
    decoder = Decoder(model, sampler="static", blocks="whole", eos="none", gen_length=8, batch_size=2)

    def slow(turn: Turn) -> None:
        time.sleep(0.3)

    assert decoder("w1", observe=slow)[0].seconds < 1.2


def test_infilling_keeps_what_is_given_and_counts_what_is_filled(model: Model) -> None:
    decoder = Decoder(model, sampler="static", eos="none")
    result = decoder(decoder.infill(["w1 w2", 3, "w7 w8", 2, "w9"]))[0]
    assert result.prompt_tokens == [1, 2] and len(result.canvas) == 8
    assert result.canvas[3:5] == [7, 8] and result.canvas[-1] == 9 and result.nfe == 5
    assert result.text.startswith("w1w2") and result.text.endswith("w9") and "w7w8" in result.text
    assert result.turns[3:5] == [0, 0] and result.turns[-1] == 0
    ends = sum(token == model.ids.eos for token in result.canvas)
    assert result.useful_tokens == 5 - ends and model.ids.eos not in result.tokens
    with pytest.raises(UserError, match="nothing to fill in"):
        decoder.infill(["w1"])


@pytest.mark.parametrize("prompt", [None, "w3 w4", [5, 6, 7], [{"role": "user", "content": "w3"}]], ids=str)
@pytest.mark.parametrize("parts", [["w1 w2", 3, "w7 w8", 2, "w9"], [2, "w4", 1], ["w1", 4]], ids=str)
def test_given_tokens_are_the_unmasked_positions_of_the_answer(model: Model, parts: Any, prompt: Any) -> None:
    decoder = Decoder(model, sampler="static", eos="none", forbid_eos=True)
    request = decoder.infill(parts, prompt=prompt)
    before = [] if prompt is None else decoder.encode(prompt)
    given = [text for piece in parts for text in (piece.split() if isinstance(piece, str) else [None] * piece)]
    head = next(at for at, text in enumerate(given) if text is None) if prompt is None else 0
    result = decoder(request)[0]
    assert list(request.tokens[: len(before)]) == before and len(request.tokens) == len(before) + len(given)
    assert result.given_tokens == sum(text is not None for text in given[head:])
    assert result.useful_tokens == given.count(None)
    assert result.prompt_tokens == (before or list(request.tokens[:head]))
    if prompt is not None:
        assert result.text == decoder.prompts.text(result.canvas)


@pytest.mark.parametrize("parts", ["The cat", b"x", 3, [], {"a": 1}, [1.5], [True], ["a", -1], ["a", 0]], ids=str)
def test_parts_that_are_no_list_of_texts_and_numbers_are_refused(model: Model, parts: Any) -> None:
    with pytest.raises(UserError, match="must be a list of texts and numbers of masks"):
        Decoder(model).infill(parts)


def test_a_request_without_masks_comes_back_as_it_is(model: Model) -> None:

    result = Decoder(model)(Request([1, 2], [False, False]))[0]
    assert (result.nfe, result.canvas, result.prompt_tokens) == (0, [], [1, 2])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampler": "confidense"}, "Did you mean 'confidence'"),
        ({"temprature": 1.0}, "Did you mean 'temperature'"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"gen_length": 0}, "gen_length=0 must be at least 1"),
        ({"gen_length": 500}, "limit is 256"),
        ({"sampler": "eb", "eos_last": True}, "sampler=eb with these options does not rank by confidence alone"),
    ],
)
def test_mistakes_are_named(model: Model, options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Decoder(model, **options)  # type: ignore[arg-type]


def test_a_statistic_that_does_not_exist_is_named(model: Model) -> None:
    class Curious(Static):
        def needs(self) -> tuple[Need, ...]:
            return (Need(reads=Statistic.of("entropie")),)

    with pytest.raises(UserError, match="'entropie'.* first, second, .*Did you mean 'entropy'"):
        Decoder(model, Curious(), gen_length=8)
    assert all(name in getsource(Scores) for name in STATISTICS)


def test_prompts_that_cannot_be_decoded_are_named(model: Model) -> None:
    decoder = Decoder(model, gen_length=16)
    for prompt, words in ((" ", "prompt is empty"), ([99], "token id 99"), ("w1 " * 300, "limit of 256")):
        with pytest.raises(UserError, match=words):
            decoder(prompt)  # type: ignore[arg-type]


def test_a_stream_gives_every_turn(model: Model) -> None:
    decoder = Decoder(model, sampler="static", eos="none", gen_length=8)
    masks = [int(turn.candidates.masked.sum()) for turn in decoder.turns("w1")]
    assert masks == list(range(7, -1, -1))


def test_an_anchor_is_part_of_the_answer_and_no_infilling() -> None:
    anchored = Prophet(Static(), region="anchor", anchor_text="Emma", anchor_position=3)
    decoder = Decoder(load("mini-llada"), sampler=anchored, gen_length=32)
    result = decoder('Shuffle the list:\n["Emma", "Hugo", "Kai"]')[0]
    anchor = decoder.prompts.ids_of(" Emma")
    assert result.canvas[3 : 3 + len(anchor)] == anchor
    assert "Shuffle" not in result.text and " Emma" in result.text
    assert result.stop_reason == "eos" and result.given_tokens == len(anchor)
    assert result.useful_tokens == len(result.tokens) - len(anchor)


def test_an_anchor_behind_the_end_of_the_answer_is_none_of_its_tokens() -> None:
    anchored = Prophet(Static(), region="anchor", anchor_text="Emma", anchor_position=28)
    result = Decoder(load("mini-llada"), sampler=anchored, gen_length=32)('Copy the list:\n["Hugo"]')[0]
    assert result.stop_reason == "eos" and len(result.tokens) < 28
    assert result.given_tokens == 0 and result.useful_tokens == len(result.tokens)


def test_an_anchor_that_begins_the_answer_has_no_space_before_it() -> None:
    """mini-dream's lists begin with another token than a bracket behind a space: 12 % were right, and are 96."""
    anchored = Prophet(Static(), region="anchor", anchor_text='["', anchor_position=0)
    decoder = Decoder(load("mini-dream"), sampler=anchored, gen_length=32)
    assert isinstance(decoder.sampler, Prophet)
    assert [*decoder.sampler.anchor] == decoder.prompts.ids_of('["') != decoder.prompts.ids_of(' ["')


def test_a_request_names_its_temperature(model: Model) -> None:
    hot = Decoder(model, gen_length=24, temperature=1.0, batch_size=2)
    request = replace(hot.request("w4 w5 w6", seed=14), temperature=0.0)
    cold = Decoder(model, gen_length=24)
    (_, drawn), (_, argmax) = sorted(hot.run([replace(request, temperature=None), request]))
    assert drawn.canvas == hot("w4 w5 w6", seed=14)[0].canvas and argmax.canvas == cold("w4 w5 w6")[0].canvas
    with pytest.raises(UserError, match="temperature=0.7.*Set temperature"):
        list(cold.run([replace(request, temperature=0.7)]))
