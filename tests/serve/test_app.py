"""The server's replies: in OpenAI's form, the same in one piece and in many, and with a sentence for every mistake."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from dllm import Decoder
from dllm.models.bundle import Model
from dllm.serve import wire
from dllm.serve.jobs import Failed, Job, Limits
from dllm.setting import Sampling
from tests.serve.conftest import ASK, CHAT, Place, defaults_of, events, streamed_text
from tests.serve.stand_in import Deliver, OneByOne

HOT = {"temperature": 1.0, "seed": 5}
KEY = "a-key-of-the-tests"


def error_of(reply: httpx.Response) -> dict[str, Any]:
    """The error, which has OpenAI's four fields whatever went wrong."""
    assert reply.headers["content-type"] == "application/json"
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"] and error["type"]
    assert "Traceback" not in reply.text and 'File "' not in reply.text
    return dict(error)


# -- replies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "body"), [
    (CHAT, {}), (CHAT, {**HOT, "n": 3}), ("/v1/completions", HOT),
    ("/v1/completions", {**HOT, "diffusion": {"sampler": "static"}}),
], ids=str)  # fmt: skip
def test_the_pieces_of_a_stream_make_up_the_reply(place: Place, path: str, body: dict[str, Any]) -> None:
    whole = place.ask(path, **body).json()
    stream = place.ask(path, stream=True, stream_options={"include_usage": True}, **body)
    found = events(stream)
    assert found[-1] == (None, "[DONE]")
    chunks = [data for _, data in found[:-1]]
    assert len({(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks}) == 1
    for choice in whole["choices"]:
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert streamed_text(stream, choice["index"]) == text
        own = [one for chunk in chunks for one in chunk["choices"] if one["index"] == choice["index"]]
        (last,) = [one for one in own if one["finish_reason"]]
        assert last["finish_reason"] == choice["finish_reason"] in ("stop", "length")
        assert last["diffusion"]["nfe"] == choice["diffusion"]["nfe"] > 0
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert whole["usage"]["total_tokens"] == whole["usage"]["prompt_tokens"] + whole["usage"]["completion_tokens"]
    assert len(whole["choices"]) == body.get("n", 1)


def test_a_chat_names_who_speaks_first(place: Place) -> None:
    first = events(place.ask(stream=True, n=2))[:2]
    deltas = [(data["choices"][0]["index"], data["choices"][0]["delta"]) for _, data in first]
    assert deltas == [(0, {"role": "assistant", "content": ""}), (1, {"role": "assistant", "content": ""})]


def test_snapshots_are_chunks_without_choices(place: Place) -> None:
    diffusion = {"snapshots": True, "sampler": "static"}
    plain = events(place.ask(stream=True, diffusion={"sampler": "static"}, **HOT))
    found = events(place.ask(stream=True, diffusion=diffusion, **HOT))
    shots = [data for name, data in found if name == "diffusion.snapshot"]
    assert shots and {data["object"] for data in shots} == {"chat.completion.chunk"}
    assert all(data["choices"] == [] for data in shots) and not any(name for name, _ in plain)
    last = shots[-1]["diffusion"]
    assert None not in last["words"] and len(last["words"]) == 16 and last["guesses"] == {}
    turns = [data["diffusion"]["turn"] for data in shots]
    assert turns == sorted(set(turns)) and len(turns) == turns[-1], "a reader that keeps up sees every turn"
    early = shots[0]["diffusion"]
    hidden = [at for at, word in enumerate(early["words"]) if word is None]
    assert hidden and {int(at) for at in early["guesses"]} <= set(hidden)


def stop_word(place: Place) -> str:
    words = place.ask("/v1/completions", **HOT).json()["choices"][0]["text"]
    return str(words[len(words) // 2 :][:3])


@pytest.mark.parametrize("more", [{}, {"logprobs": True}, {"diffusion": {"trace": True}}], ids=str)
def test_a_stop_string_ends_the_reply_before_it(place: Place, more: dict[str, Any]) -> None:
    word = stop_word(place)
    free = place.ask("/v1/completions", **HOT, **more).json()["choices"][0]
    whole = place.ask("/v1/completions", stop=[word], **HOT, **more).json()
    (choice,) = whole["choices"]
    assert choice["text"] == free["text"].partition(word)[0] and choice["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] < 16
    assert streamed_text(place.ask("/v1/completions", stream=True, stop=[word], **HOT, **more)) == choice["text"]
    assert not place.scheduler.busy or place.scheduler.running  # an aborted row leaves


def test_logprobs_belong_to_the_tokens_of_the_text(place: Place) -> None:
    (chat,) = place.ask(logprobs=True).json()["choices"]
    entries = chat["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == chat["message"]["content"]
    assert entries[0]["logprob"] == -0.5 and {entry["logprob"] for entry in entries[1:]} <= {-9999.0}
    (text,) = place.ask("/v1/completions", logprobs=0).json()["choices"]
    found = text["logprobs"]
    assert "".join(found["tokens"]) == text["text"] and found["text_offset"][0] == 0
    assert [text["text"][at:] != "" for at in found["text_offset"]] == [True] * len(found["tokens"])
    last = [data for _, data in events(place.ask(logprobs=True, stream=True)) if data != "[DONE]"][-1]
    assert last["choices"][0]["logprobs"]["content"] == entries


def test_an_infilling_streams_its_text(place: Place) -> None:
    canvas = {"canvas": ["w5 w6", 4, "w7", 2, "w8"]}
    for prompt in ("w5 w7", None):
        whole = place.ask("/v1/completions", diffusion=canvas, prompt=prompt).json()
        text = whole["choices"][0]["text"]
        assert text.startswith("w5w6") and text.endswith("w8") and whole["usage"]["completion_tokens"] == 6
        assert streamed_text(place.ask("/v1/completions", diffusion=canvas, prompt=prompt, stream=True)) == text


@pytest.mark.parametrize("prompt", [None, "w5 w7"])
def test_an_end_of_text_in_a_gap_does_not_end_what_is_given_behind_it(served: Model, prompt: str | None) -> None:
    """The reply is the offline answer, and its text is the whole canvas without the ends of text."""
    free = Place(served, defaults=replace(defaults_of(served), sampling=Sampling()))
    body = {"diffusion": {"canvas": ["w5 w6", 4, "w7", 2, "w8"]}, "prompt": prompt, "temperature": 3}
    (job,) = wire.asked(body, False, free.service.defaults).jobs
    offline = Decoder(served, temperature=3.0, batch_size=60)([job.request] * 60)
    end, head = served.ids.eos, [] if prompt else [5, 6]
    seeds = [result.seed for result in offline if end in result.canvas][:3]
    assert len(seeds) == 3, "an end of text stands in a gap"
    for seed in seeds:
        (choice,) = free.ask("/v1/completions", **body, seed=seed).json()["choices"]
        whole = [token for token in [*head, *offline[seed].canvas] if token != end]
        assert choice["text"] == served.tokenizer.decode(whole) == offline[seed].text  # type: ignore[union-attr]
        assert choice["text"].startswith("w5w6") and choice["text"].endswith("w8")
        assert streamed_text(free.ask("/v1/completions", stream=True, **body, seed=seed)) == choice["text"]
    free.close()


def test_models_parts_and_health(place: Place) -> None:
    (model,) = place.call("GET", "/v1/models").json()["data"]
    assert (model["id"], model["object"]) == ("tiny", "model")
    assert place.call("GET", "/v1/models/tiny").json() == model
    assert "sampler" in place.call("GET", "/v1/parts").json()
    assert place.call("GET", "/health").json() == {"status": "ready"}


# -- errors -----------------------------------------------------------------------------------------------------

JSON = {"content-type": "application/json"}


def raw(content: bytes | str, **headers: str) -> dict[str, Any]:
    return {"content": content, "headers": {**JSON, **headers}}


def deep(levels: int) -> str:
    return '{"messages":' + "[" * levels + "]" * levels + "}"


TABLE: list[tuple[dict[str, Any], int, str]] = [
    (raw("{"), 400, "no JSON"), (raw('{"temperature": NaN}'), 400, "NaN"), (raw(deep(100)), 400, "deeper than"),
    (raw(deep(100_000)), 400, "deeper than "), (raw('{"messages": [{"content": "\\ud800"}]}'), 400, "surrogate"),
    (raw("[1]"), 400, "no object"), (raw(b"\xff\xfe{}"), 400, "UTF-8"), (raw('{"n": 1, "n": 2}'), 400, "twice"),
    (raw('{"seed": 1e999}'), 400, "number"), (raw('{"seed": ' + "9" * 5000 + "}"), 400, "digits"),
    ({"content": json.dumps(ASK), "headers": {"content-type": "text/plain"}}, 415, "application/json"),
    ({"content": json.dumps(ASK)}, 415, "application/json"),
    (raw(json.dumps({**ASK, "user": "x" * 2**20})), 413, "1048576 bytes"),
    ({"json": {**ASK, "temprature": 1}}, 400, "temprature"), ({"json": {**ASK, "max_tokens": 0}}, 400, "max_tokens"),
    ({"json": {**ASK, "model": "gpt-4"}}, 404, "model"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "status", "words"), TABLE, ids=[words for _, _, words in TABLE])
def test_a_bad_body_is_told_what_is_wrong_with_it(
    place: Place, request_: dict[str, Any], status: int, words: str
) -> None:
    reply = place.call("POST", CHAT, **request_)
    assert reply.status_code == status and words in error_of(reply)["message"], reply.text
    assert "x" * 50 not in reply.text


def test_what_is_nowhere_and_what_is_not_taken(place: Place) -> None:
    for method, path, status in (
        ("GET", "/nothing", 404), ("GET", CHAT, 405), ("POST", "/v1/models", 405), ("PUT", CHAT, 405),
        ("GET", "/v1/models/other", 404), ("GET", "/v1/models/", 404), ("GET", "/../etc/passwd", 404),
        ("OPTIONS", CHAT, 405),
    ):  # fmt: skip
        reply = place.call(method, path)
        assert reply.status_code == status, (method, path, reply.text)
        error_of(reply)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/models", "/v1/parts", "/metrics", "/", "/nothing"])
def test_every_route_but_health_wants_the_key(placed: Callable[..., Place], path: str) -> None:
    locked = placed(api_key=KEY)
    method = "POST" if "completions" in path else "GET"
    for value in ("", "Bearer", "Bearer x", f"Bearer {KEY}x", f"Basic {KEY}", "Basic eDp5", "Bearer \xe9"):
        headers = {"authorization": value.encode("latin-1")} if value else {}
        reply = locked.call(method, path, headers=headers)  # type: ignore[arg-type]
        assert reply.status_code == 401 and "Authorization: Bearer KEY" in error_of(reply)["message"]
        assert ("www-authenticate" in reply.headers) == (path == "/")
    basic = base64.b64encode(f"anyone:{KEY}".encode()).decode()
    for value in (f"Bearer {KEY}", f"bearer {KEY}", f"Basic {basic}"):
        assert locked.call(method, path, headers={"authorization": value}).status_code != 401
    assert locked.call("GET", "/health").status_code == 200


def test_a_page_elsewhere_cannot_call_the_server_by_its_own_name(placed: Callable[..., Place], place: Place) -> None:
    for host, status in (
        ("evil.example", 421), ("127.0.0.1.evil.example:8000", 421), ("", 421), ("localhost", 200),
        ("LOCALHOST:8000", 200), ("[::1]:8000", 200), ("127.0.0.1:9", 200), ("localhost:evil", 421),
    ):  # fmt: skip
        assert place.call("GET", "/v1/models", headers={"host": host}).status_code == status, host
    named = placed(hosts=("dllm.example",))
    assert named.call("GET", "/v1/models", headers={"host": "dllm.example"}).status_code == 200
    everywhere = placed(host="0.0.0.0", api_key=KEY)
    headers = {"host": "any.example", "authorization": f"Bearer {KEY}"}
    assert everywhere.call("GET", "/v1/models", headers=headers).status_code == 200


def test_pages_of_other_origins_are_let_in_by_name_only(placed: Callable[..., Place], place: Place) -> None:
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    closed = place.call("GET", "/v1/models", headers=asked)
    assert not [name for name in closed.headers if name.startswith("access-control")]
    assert place.call("OPTIONS", CHAT, headers=asked).status_code == 405
    open_ = placed(cors=("https://a.example",), api_key=KEY)
    assert open_.call("OPTIONS", CHAT, headers=asked).headers["access-control-allow-origin"] == "https://a.example"
    other = open_.call("OPTIONS", CHAT, headers={**asked, "origin": "https://b.example"})
    assert "access-control-allow-origin" not in other.headers


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


def failing(kind: str) -> Callable[[Job, Deliver], None]:
    return lambda job, deliver: deliver(Failed(kind, f"the decode failed: {kind}.", "id77"))


@pytest.mark.parametrize(("kind", "status"), [
    ("timeout", 504), ("forwards", 500), ("error", 500), ("memory", 500), ("closing", 503),
])  # fmt: skip
def test_a_failed_decode_is_an_error_or_an_event(
    placed: Callable[..., Place], served: Model, kind: str, status: int
) -> None:
    scheduler = OneByOne(served)
    scheduler.script = failing(kind)
    bad = placed(scheduler)
    reply = bad.ask()
    error = error_of(reply)
    assert reply.status_code == status and "id77" in error["message"] and error["code"] == kind
    assert ("retry-after" in reply.headers) == (status == 503)
    stream = bad.ask(stream=True)
    assert stream.status_code == 200 and events(stream)[-1][1]["error"] == error
    scheduler.script = None
    assert bad.ask().status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long_is_ended(placed: Callable[..., Place], served: Model, stream: bool) -> None:
    slow = placed(OneByOne(served, pause=0.05), timeout=0.1)
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
    def broken(body: Any, *_: Any) -> None:
        raise RuntimeError(body["messages"][0]["content"])

    monkeypatch.setattr(wire, "asked", broken)
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
    assert "answered" in caplog.text
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


# -- malformed requests -----------------------------------------------------------------------------------------

WRONG = [None, True, "", "x", -1, 1.5, 10**30, [], [[]], {}, {"a": 1}, [None]]
FIELDS = [
    "messages", "max_tokens", "temperature", "n", "stop", "stream", "seed", "diffusion", "stream_options", "logprobs",
]  # fmt: skip
BODIES = [{**ASK, name: value} for name in FIELDS for value in WRONG]
BYTES = [
    b"", b"null", b"\x00", b"{}", b"[]", b"1", b'"x"', b"{}{}", b"\xef\xbb\xbf{}", b'{"a":}', b"{'messages': 1}",
    b"[" * 9999, b'{"messages": ' + b'{"a":' * 900 + b"1" + b"}" * 901, b"\xff" * 100,
    b'{"messages": "\\ud83d"}', b'{"\\udc00": 1}',
]  # fmt: skip


def test_malformed_requests_get_a_sentence_and_the_server_goes_on(place: Place) -> None:
    assert len(BODIES) + len(BYTES) > 60

    async def throw(client: httpx.AsyncClient) -> list[httpx.Response]:
        sent = [client.post(CHAT, content=json.dumps(body), headers=JSON) for body in BODIES]
        return [*await asyncio.gather(*sent), *[await client.post(CHAT, content=b, headers=JSON) for b in BYTES]]

    replies = place.run(throw)
    strange = [(reply.status_code, reply.text[:200]) for reply in replies if reply.status_code not in (200, 400)]
    assert strange == []
    assert all(error_of(reply) for reply in replies if reply.status_code != 200)
    assert all(reply.status_code == 400 for reply in replies[len(BODIES) :])
    assert place.ask().status_code == 200
