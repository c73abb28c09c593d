"""``top_logprobs``: what the plain network says of a position in the forward that decided it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dllm.models.bundle import Model
from dllm.record.trace import Trace
from tests.parity import own_logits
from tests.serve.conftest import CHAT, Place, events
from tests.support.harness import full

PROMPT = [{"role": "user", "content": "Latin square:\nA,B,C,D"}]
ASK: dict[str, Any] = {"messages": PROMPT, "max_tokens": 32, "logprobs": True, "top_logprobs": 20}


PARTS = [{"sampler": "wino"}, {"sampler": "lopa"}]
MORE = [{"sampler": "static"}, {"sampler": "confidence", "blocks": "whole"}]


@pytest.mark.parametrize("diffusion", PARTS + MORE * full(), ids=str)
def test_the_likeliest_are_those_of_the_plain_network(
    mini_place: Place, mini_model: Model, diffusion: dict[str, Any]
) -> None:
    """Of each token's last commit: the canvas that its forward saw, run again through the network alone."""
    choice = mini_place.call("POST", CHAT, json={**ASK, "diffusion": {**diffusion, "trace": True}}).json()["choices"][0]
    trace = Trace.from_json(choice["diffusion"]["trace"])
    canvases, last = list(trace.canvases()), dict[int, int]()
    for number, (record, kept) in enumerate(trace.path()):
        for commits in record.written(kept):
            last |= dict.fromkeys(commits.positions, number)
    content = choice["logprobs"]["content"]
    assert len(content) > 20
    for at, token in enumerate(content):
        logits = own_logits(mini_model.transformer, {"input_ids": torch.tensor([canvases[last[at]]])})[0]
        logits[:, trace.mask_id] = -torch.inf
        expected = logits[trace.start + at].double().log_softmax(-1).topk(20)
        found = token["top_logprobs"]
        assert [one["logprob"] for one in found] == pytest.approx(expected.values.tolist(), abs=1e-4)
        assert found[0]["token"] == token["token"] or found[0]["logprob"] >= token["logprob"]
        words = [mini_model.tokenizer.decode([one]) for one in expected.indices.tolist()[:3]]  # type: ignore[union-attr]
        apart = expected.values.diff().abs()[:3].min() > 1e-4
        assert not apart or [bytes(one["bytes"]).decode() for one in found[:3]] == words
        own = [one["logprob"] for one in found if one["token"] == token["token"]]
        assert token["logprob"] == -9999 or own == [pytest.approx(token["logprob"], abs=1e-6)]


def test_the_answer_is_the_same_streamed_and_in_completions(mini_place: Place) -> None:
    plain = mini_place.call("POST", CHAT, json={**ASK, "top_logprobs": 0}).json()["choices"][0]
    whole = mini_place.call("POST", CHAT, json=ASK).json()["choices"][0]
    assert whole["message"] == plain["message"]
    bare = [{**one, "top_logprobs": []} for one in whole["logprobs"]["content"]]
    assert bare == plain["logprobs"]["content"]
    reply = mini_place.call("POST", CHAT, json={**ASK, "stream": True})
    ends = [one for _, data in events(reply) if data != "[DONE]" for one in data["choices"] if one["finish_reason"]]
    assert [one["logprobs"] for one in ends] == [whole["logprobs"]]
    body = {"prompt": "Latin square:\nA,B,C,D", "max_tokens": 32, "logprobs": 5}
    found = mini_place.call("POST", "/v1/completions", json=body).json()["choices"][0]["logprobs"]
    assert [len(one) for one in found["top_logprobs"]] == [5] * len(found["tokens"])
    for token, p, others in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
        assert others[token] == pytest.approx(p, abs=1e-6)
    without = mini_place.call("POST", "/v1/completions", json={**body, "logprobs": 0}).json()["choices"][0]["logprobs"]
    assert without == {**found, "top_logprobs": None}


def test_under_a_constraint_they_are_the_models_own(mini_place: Place) -> None:
    form = {"type": "choice", "options": ["Zoe", "Ada"]}
    choice = mini_place.call("POST", CHAT, json={**ASK, "response_format": form}).json()["choices"][0]
    first = choice["logprobs"]["content"][0]
    assert choice["message"]["content"] in ("Zoe", "Ada") and first["top_logprobs"][0]["token"] != first["token"]


def test_a_position_that_no_forward_decided_has_none(mini_place: Place) -> None:
    body = {**ASK, "max_tokens": None, "diffusion": {"canvas": ["A,", 5]}}
    content = mini_place.call("POST", CHAT, json=body).json()["choices"][0]["logprobs"]["content"]
    assert content[0]["token"] == "A" and content[0]["top_logprobs"] == []
    assert content[-1]["top_logprobs"] != []
