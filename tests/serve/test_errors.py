"""Every mistake and every failure has its status, and a sentence in OpenAI's form."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from dllm.parts import ApiError, Job, JobFailure, Limits, Model, Progress, error_form
from dllm.serve.dialects import chat_request
from tests.serve.conftest import ASK, CHAT, HOT, JSON, Place, error_of, events
from tests.serve.stand_in import Deliver, OneByOne
from tests.serve.test_passing import SALTED


def raw(content: bytes | str, **headers: str) -> dict[str, Any]:
    return {"content": content, "headers": {**JSON, **headers}}


def deep(levels: int) -> str:
    return '{"messages":' + "[" * levels + "]" * levels + "}"


TABLE: list[tuple[dict[str, Any], int, str]] = [
    (raw("{"), 400, "not JSON"),
    (raw('{"temperature": NaN}'), 400, "NaN"),
    (raw(deep(100)), 400, "deeper than"),
    (raw(deep(15_000)), 400, "deeper than "),
    (raw(deep(100_000)), 400, "100001 lists"),
    (raw('{"messages": [{"content": "\\ud800"}]}'), 400, "surrogate"),
    (raw("[1]"), 400, "not an object"),
    (raw(b"\xff\xfe{}"), 400, "UTF-8"),
    (raw('{"n": 1, "n": 2}'), 400, "twice"),
    (raw('{"seed": 1e999}'), 400, "number"),
    (raw('{"seed": ' + "9" * 5000 + "}"), 400, "digits"),
    ({"content": json.dumps(ASK), "headers": {"content-type": "text/plain"}}, 415, "application/json"),
    ({"content": json.dumps(ASK)}, 415, "application/json"),
    (raw(json.dumps({**ASK, "user": "x" * 2**20})), 413, "1048576 bytes"),
    ({"json": {**ASK, "temprature": 1}}, 400, "temprature"),
    ({"json": {**ASK, "max_tokens": 0}}, 400, "max_tokens"),
    ({"json": {**ASK, "model": "gpt-4"}}, 404, "model='gpt-4' is not served here; 'tiny' is"),
    ({"json": {**ASK, "diffusion": {"cache": "dkv_greedy"}}}, 400, "Use diffusion.sampler=order or diffusion.cache="),
    ({"json": {**ASK, "max_tokens": 64, "messages": [{"role": "user", "content": "w5 " * 200}]}}, 400, "limit of 256"),
]


def test_anthropics_clients_read_its_word_for_each_status() -> None:
    """As its documentation lists them; it has no status 503, and calls its own 529 so."""
    kinds = {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        415: "invalid_request_error",
        429: "rate_limit_error",
        500: "api_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
    forms = {status: error_form(ApiError(status, "words"), "/v1/messages", "x") for status in kinds}
    assert {status: form["error"]["type"] for status, form in forms.items()} == kinds
    assert forms[429] == {"type": "error", "error": {"type": kinds[429], "message": "words"}, "request_id": "x"}


@pytest.mark.parametrize(("request_", "status", "words"), TABLE, ids=[words for _, _, words in TABLE])
def test_a_bad_body_is_told_what_is_wrong_with_it(
    place: Place, request_: dict[str, Any], status: int, words: str
) -> None:
    reply = place.call("POST", CHAT, **request_)
    assert reply.status_code == status and words in error_of(reply)["message"], reply.text
    assert "x" * 50 not in reply.text


def test_what_is_nowhere_and_what_is_not_taken(place: Place) -> None:
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("GET", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("PUT", CHAT, 405),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/../etc/passwd", 404),
        ("OPTIONS", CHAT, 405),
    ):
        reply = place.call(method, path)
        assert reply.status_code == status, (method, path, reply.text)
        error_of(reply)


def test_a_body_is_read_no_further_than_the_limit(placed: Callable[..., Place]) -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield b" " * 2**18

    reply = placed().call("POST", CHAT, content=endless(), headers=JSON)
    assert reply.status_code == 413 and taken <= 6


def test_a_body_that_does_not_come_is_not_waited_for(placed: Callable[..., Place]) -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(600)

    reply = placed(read_timeout=0.1).call("POST", CHAT, content=stuck(), headers=JSON)
    assert reply.status_code == 408
    assert error_of(reply)["code"] == "body_too_slow"


def failing(kind: str, turns: int = 0) -> Callable[[Job, Deliver], None]:
    """Fails after so many turns."""

    def decode(job: Job, deliver: Deliver) -> None:
        for turn in range(turns):
            deliver(Progress(turn, 0, [5], [True], 0))
            time.sleep(0.3)  # the reply begins
        deliver(JobFailure(kind, f"the decode failed: {kind}.", "id77"))

    return decode


@pytest.mark.parametrize(
    ("kind", "status"), [("timeout", 504), ("forwards", 500), ("error", 500), ("memory", 500), ("closing", 503)]
)
def test_a_failed_decode_is_an_error_or_an_event(
    placed: Callable[..., Place], served: Model, kind: str, status: int
) -> None:
    scheduler = OneByOne(served)
    scheduler.script = failing(kind)
    bad = placed(scheduler)
    reply = bad.ask()
    error = error_of(reply)
    told = "took more than 120 seconds" if kind == "timeout" else "id77"
    assert reply.status_code == status and told in error["message"] and error["code"] == kind
    assert ("retry-after" in reply.headers) == (status == 503)
    waits = bad.ask(stream=True)
    assert (waits.status_code, error_of(waits)) == (status, error)
    scheduler.script = failing(kind, turns=1)
    stream = bad.ask(stream=True)
    assert stream.status_code == 200 and events(stream)[-1][1]["error"] == error
    scheduler.script = None
    assert bad.ask().status_code == 200


@pytest.mark.parametrize("path", SALTED)
def test_a_stream_that_waits_when_the_server_stops_has_a_status(
    placed: Callable[..., Place], served: Model, path: str
) -> None:
    """By which a proxy asks another server, whatever the interface."""
    scheduler = OneByOne(served)
    scheduler.script = failing("closing")
    reply = placed(scheduler).call("POST", path, json={**SALTED[path], "stream": True})
    assert reply.status_code == 503 and reply.headers["retry-after"] and reply.headers["content-type"].endswith("json")


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long_is_ended(placed: Callable[..., Place], served: Model, stream: bool) -> None:
    slow = placed(OneByOne(served, pause=0.2), timeout=1.0)
    reply = slow.ask(stream=stream, diffusion={"sampler": "static"})
    error = events(reply)[-1][1]["error"] if stream else error_of(reply)
    assert (reply.status_code, error["code"]) == (200 if stream else 504, "timeout")


def test_a_full_queue_says_when_to_come_again(placed: Callable[..., Place], served: Model) -> None:
    gate = threading.Event()
    scheduler = OneByOne(served, Limits(max_waiting=1))
    scheduler.script = lambda job, deliver: (gate.wait(5), scheduler.decode(job, deliver))[1]
    busy = placed(scheduler)

    async def crowd(client: httpx.AsyncClient) -> list[httpx.Response]:
        asking = []
        for _ in range(2):
            asking.append(asyncio.create_task(client.post(CHAT, json=ASK)))
            while len(scheduler.running) + len(scheduler.waiting) < len(asking):
                await asyncio.sleep(0.01)
        while not scheduler.running:
            await asyncio.sleep(0.01)
        refused = [await client.post(CHAT, json={**ASK, "n": 2, "stream": stream}) for stream in (False, True)]
        gate.set()
        return [*refused, *await asyncio.gather(*asking)]

    *refused, first, second = busy.run(crowd)
    assert [reply.status_code for reply in refused] == [429, 429] and refused[0].headers["retry-after"] == "1"
    assert "1 requests are waiting" in error_of(refused[0])["message"]
    assert first.status_code == second.status_code == 200
    assert not scheduler.waiting and scheduler.count == 2


def test_a_closing_server_says_so(placed: Callable[..., Place]) -> None:
    place = placed()
    place.scheduler.close(0)
    reply = place.ask()
    assert reply.status_code == 503 and "shutting down" in error_of(reply)["message"] and reply.headers["retry-after"]
    health = place.call("GET", "/health")
    assert health.status_code == 503 and health.json() == {"status": "closed"}


def test_a_mistake_of_ours_is_a_number_that_the_log_has(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(kind: type, body: Any, *_: Any) -> None:
        raise RuntimeError(body["messages"][0]["content"])

    monkeypatch.setattr(chat_request, "read_body", broken)
    with caplog.at_level(logging.DEBUG):
        reply = place.ask()
    error = error_of(reply)
    ident = reply.headers["x-request-id"]
    assert reply.status_code == 500 and ident in error["message"] and "RuntimeError" in error["message"]
    assert ident in caplog.text and "RuntimeError" in caplog.text and "in broken" in caplog.text
    assert "w5 w7" not in caplog.text + reply.text


def test_the_log_has_no_prompt_and_no_answer(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        answer = place.ask(**HOT).json()["choices"][0]["message"]["content"]
    assert "POST /v1/chat/completions 200" in caplog.text
    assert "w5 w7" not in caplog.text and answer not in caplog.text


def test_labels_of_metrics_come_from_fixed_sets(placed: Callable[..., Place]) -> None:
    place = placed()
    place.ask()
    for number in range(5):
        place.call("GET", f"/made-up-{number}")
        place.call("GET", f"/v1/models/made-up-{number}")
    page = place.call("GET", "/metrics").text
    assert "made-up" not in page
    assert 'dllm_http_requests_total{route="other",status="404"} 5.0' in page
    assert 'dllm_http_requests_total{route="chat",status="200"} 1.0' in page
    assert "dllm_prompt_tokens_total " in page and 'dllm_state{state="ready"} 1.0' in page
    assert 'dllm_request_seconds_count{route="chat"} 1.0' in page and "dllm_first_text_seconds_count 1.0" in page
