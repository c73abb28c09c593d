"""Broken requests over HTTP: each gets a sentence, and the server goes on."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import httpx

from tests.serve.conftest import ASK, CHAT, JSON, Place, error_of
from tests.serve.test_malformed import ODD
from tests.support.harness import full

WRONG = [None, True, "", "x", -1, 1.5, 10**30, [], [[]], {}, {"a": 1}, [None]]
FIELDS = [
    "messages",
    "max_tokens",
    "temperature",
    "n",
    "stop",
    "stream",
    "seed",
    "diffusion",
    "stream_options",
    "logprobs",
]
BODIES = [{**ASK, name: value} for name in FIELDS for value in WRONG]
BYTES = [
    b"", b"null", b"\x00", b"{}", b"[]", b"1", b'"x"', b"{}{}", b"\xef\xbb\xbf{}", b'{"a":}', b"{'messages': 1}",
    b"[" * 9999, b'{"messages": ' + b'{"a":' * 900 + b"1" + b"}" * 901, b"\xff" * 100,
    b'{"messages": "\\ud83d"}', b'{"\\udc00": 1}',
]  # fmt: skip


def test_malformed_requests_get_a_sentence_and_the_server_goes_on(place: Place) -> None:
    assert len(BODIES) + len(BYTES) > 60

    bodies = [*(json.dumps(body).encode() for body in BODIES), *BYTES]

    async def throw(client: httpx.AsyncClient) -> list[httpx.Response]:
        few = asyncio.Semaphore(16)  # all at once would measure a loaded machine's time-outs, too

        async def post(content: bytes) -> httpx.Response:
            async with few:
                return await client.post(CHAT, content=content, headers=JSON)

        return await asyncio.gather(*map(post, bodies))

    replies = place.run(throw)
    strange = [
        (body[:200], reply.status_code, reply.text[:200])
        for body, reply in zip(bodies, replies, strict=True)
        if reply.status_code not in (200, 400)
    ]
    assert strange == []
    assert all(error_of(reply) for reply in replies if reply.status_code != 200)
    assert all(reply.status_code == 400 for reply in replies[len(BODIES) :])
    assert place.ask().status_code == 200


# Requests that are served, between them with every field.
SERVED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {
        "model": "tiny", "messages": [{"role": "system", "content": "w1"}, {"role": "user", "content": [
            {"type": "text", "text": "w5 w7"}]}], "max_tokens": 4, "temperature": 0.7, "top_p": 0.9, "seed": 3, "n": 2,
        "stop": ["w9"], "user": "me", "metadata": {"a": "b"}, "logprobs": True, "store": False,
        "diffusion": {"sampler": {"name": "prophet", "inner": "static"}, "cache": "prefix", "block_length": 4},
    }),
    (CHAT, {**ASK, "max_completion_tokens": 4, "stream": True, "stream_options": {"include_usage": True},
            "diffusion": {"sampler": {"name": "confidence", "threshold": 0.5}, "eos": "none", "snapshots": True}}),
    ("/v1/completions", {"prompt": "w5 w7", "diffusion": {
        "canvas": ["w5", 2, "w7", 1], "blocks": {"name": "fixed", "block_length": 4, "min_forwards": 1},
        "trace": True}}),
    ("/v1/completions", {"prompt": ["w5", [5, 7], "w1 w2"], "n": 2, "max_tokens": 4, "logprobs": 0, "stop": "w3",
                         "stream": True, "diffusion": {"snapshots": True}}),
    ("/v1/completions", {"prompt": [5, 7, 9], "max_tokens": 4, "logprobs": 0, "suffix": "",
                         "diffusion": {"sampler": "credit", "cache": "prefix", "guidance": 0.5}}),
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to everything inside a body."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield (*path, key)
        yield from places(entry, (*path, key))


def mutated(body: dict[str, Any], dice: random.Random) -> bytes:
    """The body with something in it removed, renamed, wrapped or replaced, or with broken bytes."""
    new = deepcopy(body)
    *way, last = dice.choice(list(places(new)))
    inside: Any = new
    for key in way:
        inside = inside[key]
    value = inside.pop(last)
    change = dice.randrange(5)
    if change and isinstance(inside, list):
        inside.insert(last, [value, deepcopy(dice.choice(ODD)), {"x": value}, str(value), -1][change])
    elif change:
        name = last + dice.choice("xs_ ") if change == 1 else last
        inside[name] = [None, value, deepcopy(dice.choice(ODD)), [value, value], {"name": value, "_target_": 1}][change]
    raw = bytearray(json.dumps(new).encode())
    if dice.random() < 0.4:
        at = dice.randrange(len(raw))
        raw[at : at + dice.randrange(3)] = dice.choice([b"", b"\xff", b"\0", b'"', b"{", b"NaN", b"1e999", b"\\ud800"])
    return bytes(raw)


def test_mutations_of_sound_requests_are_served_or_told_what_is_wrong(place: Place) -> None:
    dice, seen = random.Random(11), {200: 0, 400: 0, 404: 0}

    async def throw(client: httpx.AsyncClient) -> None:
        for path, body in SERVED:
            reply = await client.post(path, json=body)
            assert reply.status_code == 200, reply.text
        for number in range(2000 if full() else 80):
            path, body = SERVED[number % len(SERVED)]
            content = mutated(body, dice)
            reply = await client.post(path, content=content, headers=JSON)
            assert reply.status_code in seen, (content, reply.text)
            assert "Traceback" not in reply.text and "x-request-id" in reply.headers
            if reply.status_code != 200:
                error = error_of(reply)
                assert error["type"] == "invalid_request_error", content
                assert error["message"].endswith((".", "?", "...")), (content, error)
            seen[reply.status_code] += 1
        assert (await client.post(CHAT, json=ASK)).status_code == 200

    place.run(throw)
    assert seen[400] > 60 * (25 if full() else 1) and seen[200] > 3


FORMS: list[dict[str, Any]] = [
    {"prompt": "ab", "max_tokens": 6, "response_format": {"type": "regex", "pattern": "[ab]{2}c?"}},
    {**ASK, "max_tokens": 8, "n": 2, "temperature": 1, "response_format": {"type": "json_schema", "json_schema": {
        "name": "n", "description": "a number", "strict": True, "schema": {
            "type": "array", "items": {"type": "integer", "minimum": 3, "enum": [3, 4, 5]}, "maxItems": 2}}},
     "diffusion": {"constraint": {"whitespace": "none", "depth": 2, "additional": True, "confidence": "admissible"}}},
    {"prompt": "ab", "response_format": {"type": "choice", "options": ["yes", "no", "{}"]},
     "diffusion": {"canvas": [2, "e", 1], "constraint": {"confidence": "model"}}},
    {**ASK, "max_tokens": 6, "stream": True, "response_format": {"type": "grammar", "grammar": 'start: "{" start? "}"'},
     "diffusion": {"constraint": {"depth": 2, "words": True}}},
    {**ASK, "max_tokens": 6, "response_format": {"type": "json_object"}, "diffusion": {"constraint": {"depth": 1}}},
]  # fmt: skip


def test_mutations_of_forms_are_served_or_told_what_is_wrong(writer: Place) -> None:
    dice, seen = random.Random(12), {200: 0, 400: 0}

    async def throw(client: httpx.AsyncClient) -> None:
        for number in range(3000 if full() else 100):
            body = FORMS[number % len(FORMS)]
            path = CHAT if "messages" in body else "/v1/completions"
            told = {key: value for key, value in body.items() if key in ("response_format", "diffusion")}
            content = mutated(told, dice) if number >= len(FORMS) else json.dumps(told).encode()
            rest = json.dumps({key: value for key, value in body.items() if key not in told}).encode()
            reply = await client.post(path, content=rest[:-1] + b", " + content.lstrip()[1:], headers=JSON)
            assert reply.status_code in seen, (content, reply.text)
            assert "Traceback" not in reply.text
            if reply.status_code != 200:
                assert error_of(reply)["message"].endswith((".", "?", "...")), (content, reply.text)
            elif body.get("stream"):
                assert reply.text.endswith("data: [DONE]\n\n"), (content, reply.text)
            seen[reply.status_code] += 1
            assert number >= len(FORMS) or reply.status_code == 200, reply.text

    writer.run(throw)
    assert seen[400] > 30 * (25 if full() else 1) and seen[200] > 10
