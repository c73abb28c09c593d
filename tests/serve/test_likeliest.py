"""``top_logprobs``: what the plain network says of a position in the forward that decided it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from dllm import load
from dllm.parts import BYTE_OF, Model, Sampling, Trace
from tests.parity import own_logits
from tests.serve.conftest import CHAT, Place, events, writing
from tests.support.harness import full
from tests.support.tiny import make_written

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


SIGN = {byte: sign for sign, byte in BYTE_OF.items()}
# Bytes of a few characters, so that many make up one and some are lost; tokens that begin or end within a character.
BYTES = dict.fromkeys([*(bytes([byte]) for byte in "é日😀".encode()), b"\xf0\x9f", b"\x98\x80", "xé日".encode()])
PIECES = [*(bytes([byte]) for byte in range(0x20, 0x20 + 60 - len(BYTES))), *BYTES]
HOT = {"temperature": 5.0, "seed": 3, "max_tokens": 14, "n": 2, "prompt": "ABC"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    signs = ["".join(SIGN[byte] for byte in piece) for piece in PIECES]
    model = load(make_written(tmp_path_factory.mktemp("bytes") / "model", signs))
    made = Place(model, defaults=replace(writing(model), sampling=Sampling(forbid_eos=True)))
    yield made
    made.close()


def joined(scored: dict[str, Any]) -> bytes:
    return bytes(byte for entry in scored["content"] for byte in entry["bytes"])


def chat_of(body: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": body["prompt"]}]
    return {"messages": messages, **{key: value for key, value in body.items() if key != "prompt"}}


def unescaped(token: str) -> bytes:
    """The bytes of a token as completions show it."""
    if not token.startswith("bytes:"):
        return token.encode()
    return re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes.fromhex(found[1].decode()), token[6:].encode())


def ends_of(place: Place, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The last chunks of a streamed reply's choices, by their index."""
    data = [data for _, data in events(place.call("POST", path, json={**body, "stream": True})) if data != "[DONE]"]
    return sorted((one for chunk in data for one in chunk["choices"] if one["finish_reason"]), key=lambda e: e["index"])


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"stop": ["日"], "max_tokens": 24, "n": 1},
        {"stop": ["é日", "\N{REPLACEMENT CHARACTER}B"]},
        {"diffusion": {"canvas": ["A", 9, "é日", 4, "C"]}, "max_tokens": None},
    ],
    ids=str,
)
def test_bytes_make_up_the_text_and_offsets_count_its_characters(place: Place, more: dict[str, Any]) -> None:
    body = {**HOT, **more}
    chats = place.call("POST", CHAT, json={**chat_of(body), "logprobs": True}).json()["choices"]
    for choice in chats:
        assert joined(choice["logprobs"]).decode() == choice["message"]["content"]
    assert [one["logprobs"] for one in ends_of(place, CHAT, {**chat_of(body), "logprobs": True})] == [
        choice["logprobs"] for choice in chats
    ]
    choices = place.call("POST", "/v1/completions", json={**body, "logprobs": 0}).json()["choices"]
    assert "stop" not in more or "stop" in {choice["finish_reason"] for choice in choices}
    assert more.get("n") != 1 or choices[0]["logprobs"]["tokens"][-1] == "xé", "a part of the token before its 日"
    for choice in choices:
        found = choice["logprobs"]
        pieces = [unescaped(token) for token in found["tokens"]]
        assert b"".join(pieces).decode() == choice["text"] and len(found["token_logprobs"]) == len(pieces)
        before = [b"".join(pieces[:at]).decode(errors="ignore") for at in range(len(pieces))]
        assert found["text_offset"] == [len(text) for text in before]


def test_parts_of_characters_look_as_openais(place: Place) -> None:
    form = {"response_format": {"type": "choice", "options": ["😀é"]}, "prompt": "A", "max_tokens": 12}
    place = Place(place.scheduler.model, defaults=writing(place.scheduler.model))  # whose texts may end
    (chat,) = place.call("POST", CHAT, json={**chat_of(form), "logprobs": True}).json()["choices"]
    assert joined(chat["logprobs"]) == "😀é".encode()
    assert all(
        entry["token"].encode() == bytes(entry["bytes"]) or entry["token"].startswith("\\x")
        for entry in chat["logprobs"]["content"]
    )
    (text,) = place.call("POST", "/v1/completions", json={**form, "logprobs": 0}).json()["choices"]
    assert text["logprobs"]["tokens"][0].startswith("bytes:\\xf0")
    place.close()
