"""Log-probabilities say what each token writes: joined, the reply's text, whatever was cut, streamed or damaged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dllm import load
from dllm.contract.setting import Sampling
from dllm.models.pieces import BYTE_OF
from tests.serve.conftest import CHAT, Place, events, writing
from tests.support.tiny import make_written

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


@pytest.mark.parametrize("more", [
    {}, {"stop": ["日"], "max_tokens": 24, "n": 1}, {"stop": ["é日", "\N{REPLACEMENT CHARACTER}B"]},
    {"diffusion": {"canvas": ["A", 9, "é日", 4, "C"]}, "max_tokens": None},
], ids=str)  # fmt: skip
def test_bytes_make_up_the_text_and_offsets_count_its_characters(place: Place, more: dict[str, Any]) -> None:
    body = {**HOT, **more}
    chats = place.call("POST", CHAT, json={**chat_of(body), "logprobs": True}).json()["choices"]
    for choice in chats:
        assert joined(choice["logprobs"]).decode() == choice["message"]["content"]
    assert [one["logprobs"] for one in ends_of(place, CHAT, {**chat_of(body), "logprobs": True})] == [
        choice["logprobs"] for choice in chats]  # fmt: skip
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
    assert all(entry["token"].encode() == bytes(entry["bytes"]) or entry["token"].startswith("\\x")
               for entry in chat["logprobs"]["content"])  # fmt: skip
    (text,) = place.call("POST", "/v1/completions", json={**form, "logprobs": 0}).json()["choices"]
    assert text["logprobs"]["tokens"][0].startswith("bytes:\\xf0")
    place.close()
