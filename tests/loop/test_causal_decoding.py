"""Decoding of causal models: WeDLM's window and its end, NBDiff's and autoregressive decoding, and their presets."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from harness import DATA, forward_of, model, requests
from plain_causal import Triangle

from dllm import Decoder, UserError
from dllm.parts import (
    Canvas,
    Collector,
    ContextCausal,
    EntropyDistance,
    Finished,
    FullLength,
    Ids,
    Model,
    Order,
    Parts,
    Request,
    Result,
    Sampler,
    Sampling,
    Sliding,
    Static,
    StopFront,
    Transformer,
    Turn,
    checked_sampling,
    composed,
    denoise,
    load_model,
    plain_config,
    read_model_config,
)
from dllm.parts import load as load_folder


def prompts(count: int) -> list[list[int]]:
    """Tasks of the tiny models, of several lengths: copy, reverse, sort, shift."""
    rng = random.Random(11)
    return [
        [62, rng.randrange(50, 54), *(rng.randrange(40) for _ in range(rng.randint(3, 10))), 55] for _ in range(count)
    ]


def run(network: Transformer, parts: Parts, batch: list[Request]) -> tuple[list[Turn], list[Result]]:
    """The turns of a batch, and the results."""
    ids = Ids(network.config.mask_id or 0, network.config.eos_id or 0, ())
    collector = Collector(batch, ids, str, (), trace=False)
    forward, canvas = forward_of(network, parts, Sampling()), Canvas.of(batch, network.config.pad_id or 0)
    made = []
    with torch.inference_mode():
        for turn in denoise(canvas, forward, parts):
            collector.observe(turn)
            made.append(turn)
    return made, collector.results()


def emitted(turns: list[Turn]) -> dict[int, int]:
    """Tokens of each request's answer, its end of text included, as its last turn leaves them."""
    found = {}
    for turn in turns:
        for row, name in enumerate(turn.canvas.row_id.tolist()):
            found[name] = int(turn.candidates.end[row] - turn.candidates.start[row])
    return found


@pytest.mark.parametrize(("size", "threshold", "penalty"), [(1, 0.4, 0.0), (4, 0.4, 0.02), (16, 0.6, 0.02)])
def test_wedlm_takes_at_most_a_forward_for_each_token_and_masks_of_the_window(
    size: int, threshold: float, penalty: float
) -> None:
    """Every forward fills a mask, and behind the end at most all of the window but one are filled. One at a time from
    the left, it takes as many as there are tokens."""
    network, batch = model("tiny-wedlm"), [Request.answer(prompt, 24, 60) for prompt in prompts(4)]
    fewer = 0
    for rule in (EntropyDistance(threshold, penalty), EntropyDistance(0.0, 1e6)):
        turns, results = run(network, Parts(rule, Sliding(size, size), Finished(), StopFront()), batch)
        tokens = emitted(turns)
        for number, result in enumerate(results):
            most = tokens[number] + (size - 1 if rule.threshold else 0)
            assert result.nfe <= most and (rule.threshold or result.nfe == most)
            fewer += result.nfe < tokens[number]
    assert fewer or size == 1


def test_wedlm_computes_its_window_and_what_has_become_known_at_its_front() -> None:
    """W + f queries, of which f are kept: over a decode all that is kept is what is before the last mask."""
    size, (request,) = 6, requests()[:1]
    turns, _ = run(
        model("tiny-wedlm"), Parts(EntropyDistance(), Sliding(size, size), Finished(), FullLength()), [request]
    )
    kept = 0
    for turn in turns:
        front = int(turn.canvas.masked[0].long().argmax())
        width = min(front + size, len(request.tokens)) - kept
        assert (int(turn.cost.queries), int(turn.cost.keys)) == (width, kept + width)
        kept = front
    assert kept > request.answer_start


def ends(tokens: list[int], policy: StopFront, start: int = 2, given: tuple[int, ...] = ()) -> int:
    """Where a policy ends a row (60: a mask; given: columns that are no commits), relative to the answer's start."""
    length = len(tokens)
    canvas = Canvas.of([Request([1] * start + [60] * length, [False] * start + [True] * length, start=start)], 61)
    filled = torch.tensor([[1] * start + tokens])
    where = (filled != 60) & (canvas.columns >= start)
    canvas = canvas.commit(where, filled)
    fixed = torch.isin(canvas.columns, torch.tensor(given) + start)
    last = max(given, default=-1) + start
    canvas = replace(canvas, given=canvas.given | fixed, tail=canvas.valid & (canvas.columns > last))
    nothing: Any = None
    cut = policy.cut(canvas, nothing, nothing, (61,), nothing)
    assert bool(cut.shortened) == (int(cut.end) < int(canvas.end)) and int(cut.valid.sum()) == int(cut.end)
    return int(cut.end) - start


@pytest.mark.parametrize(
    ("tokens", "policy", "end"),
    [
        ([5, 61, 7, 60], StopFront(), 2),
        ([5, 60, 61, 60], StopFront(), 4),  # a stop token behind a mask ends nothing yet
        ([5, 56, 61, 60], StopFront((56, 8)), 2),
        ([5, 61, 6, 60], StopFront((56,)), 4),
        ([5, 6, 7, 60], StopFront(limit=2), 2),
        ([5, 60, 7, 9], StopFront(limit=2), 4),  # the front holds one token
        ([61, 6, 7, 60], StopFront(limit=2), 1),
        ([5, 6, 7, 8], StopFront(limit=9), 4),
        ([5, 6, 7, 61], StopFront(), 4),
        ([5, 6], StopFront((), None), 2),
    ],
)
def test_a_row_ends_at_the_first_stop_token_of_its_front(tokens: list[int], policy: StopFront, end: int) -> None:
    assert ends(tokens, policy) == end


def test_nothing_is_cut_before_what_is_given() -> None:
    assert ends([5, 61, 7, 61, 60], StopFront(), given=(2,)) == 4
    assert ends([5, 61, 7, 60, 60], StopFront(limit=1), given=(2,)) == 5
    assert ends([61, 6, 60], StopFront(), given=(0,)) == 3  # the prompt's own end of text


def test_the_model_says_what_ends_a_text() -> None:
    assert vars(StopFront().resolved(Ids(60, 61, (61, 62))))["stops"] == (61, 62)
    assert vars(StopFront([5]).resolved(Ids(60, 61, (62,))))["stops"] == (5,)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limit": 0}, r"eos\.limit=0 must be at least 1"),
        ({"stops": [3, -1]}, r"stops=\[3, -1\] must be at least 0"),
        ({"stops": [64]}, r"eos\.stops=\(64,\) holds 64, but the model's ids end at 63"),
    ],
)
def test_stops_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Decoder(checkpoint("tiny-wedlm"), eos=StopFront(**options), gen_length=8)


# -- autoregressive -------------------------------------------------------------------------------------------------


def autoregressive() -> Transformer:
    folder = DATA / "models" / "tiny-nbdiff"
    config = replace(read_model_config(folder), attention=ContextCausal(1))
    return load_model(folder, dtype=torch.float64, config=config)


def greedy(network: Transformer, prompt: list[int], length: int) -> list[int]:
    """An ordinary loop: the whole text through plain causal attention for every token."""
    tokens = list(prompt)
    with torch.inference_mode():
        while len(tokens) < len(prompt) + length and tokens[-1] != 61:
            hidden, _ = network(torch.tensor([tokens]), torch.arange(len(tokens))[None], Triangle())
            logits = network.logits(hidden[0, -1:])[0]
            logits[60] = -torch.inf
            tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("sampler", [Order("left_to_right"), Static()], ids=["order", "static"])
def test_attention_blocks_of_one_column_decode_as_an_autoregressive_model(sampler: Sampler) -> None:
    """One row of the prompt's length, then one column a forward, a forward for each token; several rows at once."""
    network = autoregressive()
    asked = prompts(3)
    turns, results = run(
        network,
        Parts(sampler, Sliding(1), Finished(), StopFront()),
        [Request.answer(prompt, 20, 60, seed) for seed, prompt in enumerate(asked)],
    )
    for prompt, result in zip(asked, results, strict=True):
        expected = greedy(network, prompt, 20)
        assert result.canvas[: len(expected)] == expected and result.nfe == len(expected)
        assert result.query_tokens == len(prompt) + len(expected) - 1
    assert min(result.nfe for result in results) < 20  # some end by themselves
    assert all(bool(turn.view.forced_positions.any()) for turn in turns)


# -- presets --------------------------------------------------------------------------------------------------------


@cache
def checkpoint(name: str) -> Model:
    return load_folder(str(DATA / "models" / name), dtype="float64")


def preset(name: str, *more: str) -> Parts:
    config = plain_config(composed([f"experiment={name}", *more]))
    return Parts.of(config, checked_sampling(config["sampling"]))


def test_wedlm_by_one_word() -> None:
    parts = preset("wedlm")
    rule, window, end = vars(parts.sampler), vars(parts.blocks), vars(parts.eos)
    assert (rule["threshold"], rule["penalty"]) == (0.4, 0.02) and parts.sampling == Sampling()
    assert window["block_length"] == window["max_block_length"] == 16 and isinstance(parts.cache, Finished)
    assert end["stops"] is None and end["limit"] is None
    wide = preset("wedlm", "blocks.block_length=8")
    assert vars(wide.blocks)["max_block_length"] == 8
    decoder = Decoder(checkpoint("tiny-wedlm"), parts.sampler, parts.blocks, parts.cache, parts.eos, gen_length=24)
    (result,) = decoder([requests()[0].tokens[: requests()[0].answer_start]])
    _, (same,) = run(
        model("tiny-wedlm"), Parts(parts.sampler, Sliding(16, 16), parts.cache, StopFront()), requests()[:1]
    )
    assert result.canvas == same.canvas and result.nfe == same.nfe


def test_nbdiff_by_one_word() -> None:
    parts = preset("nbdiff")
    assert vars(parts.sampler)["score"] == "entropy" and parts.blocks.fixed_length == 4
    assert parts.sampling == Sampling(temperature=1.0, top_p=0.8, tempered=True) and vars(parts.eos)["when"] == "any"
    decoder = Decoder(
        checkpoint("tiny-nbdiff"),
        parts.sampler,
        parts.blocks,
        parts.cache,
        parts.eos,
        gen_length=32,
        sampling=parts.sampling,
    )
    assert decoder.parts.sampling.tempered
    prompt = list(requests()[0].tokens[: requests()[0].answer_start])
    one, other, again = (decoder([prompt], seed=seed)[0] for seed in (1, 2, 1))
    assert one.canvas == again.canvas != other.canvas, "temperature 1 draws by the seed"
    rule = preset("nbdiff_threshold")
    assert vars(rule.sampler)["threshold"] == 0.9 and rule.blocks.fixed_length == 4 and rule.sampling == Sampling()


def test_autoregressive_by_one_word() -> None:
    parts = preset("ar")
    network = autoregressive()
    _, (result,) = run(network, parts, requests()[:1])
    prompt = requests()[0].tokens[: requests()[0].answer_start]
    expected = greedy(network, list(prompt), 24)
    assert result.canvas[: len(expected)] == expected
