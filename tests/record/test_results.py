"""Results as people meet them in Python: frames, colours, log-probabilities, and a decode as it happens."""

from __future__ import annotations

import html
import math
import re

import pytest

from dllm import Decoder, Result, UserError, load, part
from dllm.parts import Estimator, Likelihood, Model, Results, Sampler, Sampling, rescored_logprobs

PROMPT = 'Sort the list:\n["Kai", "Emma", "Hugo"]'


@pytest.fixture(scope="module")
def model() -> Model:
    return load("mini-llada", dtype="float64")


def decoder_of(model: Model, sampler: Sampler | str = "static", length: int = 16) -> Decoder:
    return Decoder(model, sampler, "whole", eos="none", gen_length=length)


def traced(decoder: Decoder) -> Result:
    return decoder(PROMPT, trace=True)[0]


def test_keeping_a_trace_changes_nothing(model: Model) -> None:
    for name in ("confidence", "eb", "klass", "credit", "wino"):
        decoder = decoder_of(model, name)
        assert decoder(PROMPT)[0].canvas == traced(decoder).canvas, name


def test_a_frame_has_a_row_for_every_commit(model: Model) -> None:
    result = traced(decoder_of(model, part("sampler", "static", steps=8)))
    frame = result.traced().to_frame()
    assert len(frame) == 16 and sorted(frame.position) == list(range(16))
    assert frame.turn.tolist() == [turn for turn in range(1, 9) for _ in range(2)]
    for _, row in frame.iterrows():
        assert result.turns[row.position] == row.turn and result.canvas[row.position] == row.token
        assert result.words[row.position] == row.word and 0 < row.confidence <= 1 and 0 <= row.entropy < math.log(555)


def test_entropy_of_a_sure_token_is_small_and_of_an_unsure_one_large(model: Model) -> None:
    frame = traced(decoder_of(model, part("sampler", "static", steps=1))).traced().to_frame()
    sure, unsure = frame.loc[frame.confidence.idxmax()], frame.loc[frame.confidence.idxmin()]
    # -p ln p of the token itself bounds the entropy from below, a two-point distribution with the same p.
    for row in (sure, unsure):
        assert row.entropy >= -row.confidence * math.log(row.confidence) - 1e-12
    assert sure.entropy < 0.01 < unsure.entropy


def test_a_notebook_shows_the_text_in_the_colours_of_its_turns(model: Model) -> None:
    result = traced(decoder_of(model, part("sampler", "static", steps=8)))
    shown = result._repr_html_()
    spans = re.findall(r'<span title="forward (\d+) of \d+" style="background:#\w{6};color:#\w{6}">(.*?)</span>', shown)
    assert [int(turn) for turn, _ in spans] == result.turns[: len(result.tokens)]
    assert "".join(html.unescape(text) for _, text in spans) == result.text
    assert html.escape(PROMPT) in shown and f"{result.nfe} forwards" in shown


def test_a_notebook_shows_a_list_of_results_and_how_many_are_left(model: Model) -> None:
    found = decoder_of(model)([PROMPT, PROMPT])
    assert isinstance(found, list) and found._repr_html_() == "<hr>".join(one._repr_html_() for one in found)  # type: ignore[attr-defined]
    assert Results(found * 11)._repr_html_().endswith(">and 2 more</div>") and Results()._repr_html_() == ""


@pytest.mark.parametrize("sampler", ["static", "wino"])
def test_a_notebook_shows_a_trace_forward_by_forward(model: Model, sampler: str) -> None:
    result = traced(decoder_of(model, sampler))
    trace = result.traced()
    rows = re.findall(r"<tr>(.*?)</tr>", trace._repr_html_(), re.DOTALL)
    canvases = list(trace.canvases())
    assert len(rows) == len(canvases) == result.nfe + 1
    for row, canvas in zip(rows, canvases, strict=True):
        undecided = ['title="undecided"' in cell for cell in re.findall(r"<td>(.*?)</td>", row, re.DOTALL)]
        assert undecided == [token == trace.mask_id for token in canvas[trace.start :]]
    turns = [int(turn) for turn in re.findall(r'title="forward (\d+) of', rows[-1])]
    assert turns == result.turns


def test_a_notebook_shows_given_text_without_colour(model: Model) -> None:
    decoder = decoder_of(model)
    result = decoder(decoder.infill(['["Kai", ', 2, ', "<b>"]']))[0]
    assert "&lt;b&gt;" in result._repr_html_() or result.given_tokens
    assert result._repr_html_().count("<span title") == 2


def test_one_token_per_step_is_its_own_rescoring(model: Model) -> None:
    decoder = decoder_of(model)
    result = traced(decoder)
    commit, again = result.commit_logprobs, decoder.rescored(result)
    assert len(commit) == len(again) == 16
    for one, other in zip(commit, again, strict=True):
        assert one is not None and other == pytest.approx(one, abs=1e-8)


def test_rescoring_from_left_to_right_is_the_exact_likelihood(model: Model) -> None:
    decoder = decoder_of(model, part("sampler", "order", positions=list(range(8))), length=8)
    result = traced(decoder)
    chain = Likelihood(model, Estimator("exact_ar"))(result.prompt_tokens, result.canvas)
    # The chain of likelihood.py may propose the mask itself; a decode may not. The difference is the mask's share.
    total = sum(value or 0.0 for value in decoder.rescored(result))
    assert total == pytest.approx(chain.value, abs=1e-4) and total >= chain.value


def test_tokens_of_one_forward_are_rescored_one_after_the_other(model: Model) -> None:
    decoder = decoder_of(model, part("sampler", "static", steps=1))
    result = traced(decoder)
    commit, again = result.commit_logprobs, decoder.rescored(result)
    best = max(range(16), key=lambda at: commit[at] or -math.inf)
    assert again[best] == pytest.approx(commit[best], abs=1e-8)  # the first of them saw nothing more
    assert any(abs((one or 0) - (other or 0)) > 1e-6 for one, other in zip(commit, again, strict=True))


def test_given_and_filled_positions_have_no_log_probability(model: Model) -> None:
    decoder = Decoder(model, "static", part("blocks", "fixed", block_length=16), gen_length=32)
    result = traced(decoder)
    assert [value is None for value in result.commit_logprobs] == [False] * 16 + [True] * 16
    assert [value is None for value in decoder.rescored(result)] == [False] * 16 + [True] * 16


def test_log_probabilities_need_a_trace(model: Model) -> None:
    decoder = decoder_of(model)
    result = decoder(PROMPT)[0]
    with pytest.raises(UserError, match="trace=True"):
        _ = result.commit_logprobs
    with pytest.raises(UserError, match="trace=True"):
        decoder.rescored(result)


def test_what_is_stored_can_be_read_back(model: Model) -> None:
    result = traced(decoder_of(model))
    row = result.to_json()
    assert "trace" not in row and "words" not in row
    row.pop("useful_tokens")
    assert Result(**row) == Result(**{**result.__dict__, "trace": None, "words": []})


def test_a_stream_tells_committed_from_provisional(model: Model) -> None:
    decoder = decoder_of(model, part("sampler", "static", steps=8))
    snapshots = list(decoder.stream(PROMPT))
    final = decoder(PROMPT)[0]
    committed: set[int] = set()
    for number, snapshot in enumerate(snapshots, 1):
        assert snapshot.turn == number and len(snapshot.committed) == 2 and not snapshot.remasked
        committed |= set(snapshot.committed)
        assert set(snapshot.provisional) == set(range(16)) - committed
        assert all(0 < guess.confidence <= 1 for guess in snapshot.provisional.values())
        assert snapshot.text.count("\N{LIGHT SHADE}") == 16 - len(committed)
        assert "\N{LIGHT SHADE}" not in snapshot.draft and snapshot.done == (number == 8)
        assert all(snapshot.tokens[at] == final.canvas[at] for at in committed)
    assert snapshots[-1].tokens == final.canvas and snapshots[-1].text == final.text


def test_a_stream_shows_what_a_revocable_sampler_takes_back(model: Model) -> None:
    decoder = decoder_of(model, part("sampler", "wino", threshold=0.0, back_threshold=0.99))
    before: set[int] = set()
    undone = 0
    for snapshot in decoder.stream("Write a sentence with the words: river, old"):
        undone += len(snapshot.remasked)
        assert set(snapshot.remasked) <= before
        before = (before | set(snapshot.committed)) - set(snapshot.remasked)
    assert undone and len(before) == 16


def test_rescoring_leaves_out_what_may_not_be_proposed(model: Model) -> None:
    """With ends of text forbidden, those that were decoded are impossible, and all else is at least as likely."""
    result = traced(decoder_of(model, length=24))
    trace = result.traced()
    plain, without = rescored_logprobs(model, trace), rescored_logprobs(model, trace, Sampling(forbid_eos=True))
    ends = [token in model.ids.ends for token in result.canvas]
    assert 2 <= sum(ends) < 22
    for is_end, one, other in zip(ends, plain, without, strict=True):
        assert one is not None and other is not None and one > -math.inf
        assert other == -math.inf if is_end else other >= one - 1e-9
    with pytest.raises(UserError, match="guidance=0"):
        rescored_logprobs(model, trace, Sampling(guidance=1.0))
