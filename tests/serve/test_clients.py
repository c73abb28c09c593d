"""What clients see of a real server: OpenAI's, and plain HTTP with readers that leave, lag, or come in crowds."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from dllm.parts import Limits, Model
from tests.serve.live import Live, live
from tests.serve.load import reply_of

openai = pytest.importorskip("openai", reason="openai is not installed: pip install -e '.[dev]'")
MESSAGES = [{"role": "user", "content": "w5 w7 w9"}]


@pytest.fixture(scope="module")
def server(served: Model) -> Iterator[Live]:
    with live(served, limits=Limits(max_waiting=64)) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Live) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_openais_client_finds_the_model_and_chats(client: Any) -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id == "tiny"
    reply = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=12)
    (choice,) = reply.choices
    assert choice.message.role == "assistant" and choice.message.content and choice.finish_reason == "length"
    assert reply.usage.completion_tokens == 12 and reply._request_id in reply.id


def test_openais_client_streams_the_same(client: Any) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "temperature": 0.8, "seed": 7, "n": 2}
    whole = client.chat.completions.create(**asked)
    texts, usage = ["", ""], None
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
        usage = chunk.usage or usage
    assert texts == [choice.message.content for choice in whole.choices] and texts[0] != texts[1]
    assert usage == whole.usage


def test_openais_client_takes_snapshots_for_chunks(client: Any) -> None:
    body = {"diffusion": {"snapshots": True, "sampler": "static", "cache": "dual", "block_length": 8}}
    chunks = list(client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True, extra_body=body))
    shots = [chunk.diffusion for chunk in chunks if getattr(chunk, "diffusion", None)]
    decided = [sum(word is not None for word in shot["words"]) for shot in shots]
    assert decided == [shot["turn"] for shot in shots] and decided[-1] == 16, "one token a turn; a late reader skips"
    plain = client.chat.completions.create(
        model="tiny", messages=MESSAGES, extra_body={"diffusion": {**body["diffusion"], "snapshots": False}}
    )
    assert "".join(shots[-1]["words"]) == plain.choices[0].message.content
    assert plain.choices[0].diffusion["nfe"] == 16


def test_openais_client_reads_logprobs_and_stop(client: Any) -> None:
    (choice,) = client.chat.completions.create(model="tiny", messages=MESSAGES, logprobs=True).choices
    entries = choice.logprobs.content
    assert "".join(entry.token for entry in entries) == choice.message.content
    assert all(-9999 < entry.logprob <= 0 for entry in entries)
    word = entries[5].token
    (cut,) = client.chat.completions.create(model="tiny", messages=MESSAGES, stop=[word]).choices
    assert cut.message.content == choice.message.content.partition(word)[0] and cut.finish_reason == "stop"
    text = client.completions.create(model="tiny", prompt="w5 w7", logprobs=0).choices[0]
    assert "".join(text.logprobs.tokens) == text.text


def test_openais_client_raises_its_own_errors(client: Any, server: Live) -> None:
    with pytest.raises(openai.BadRequestError, match="max_tokens") as bad:
        client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=0)
    assert bad.value.param == "max_tokens" and bad.value.status_code == 400
    with pytest.raises(openai.NotFoundError, match="tiny") as missing:
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="thresold"):
        client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"diffusion": {"thresold": 1}})


def long_request(number: int) -> dict[str, Any]:
    prompt = f"w{number + 1} w2 w3"
    return {"prompt": prompt, "max_tokens": 32, "diffusion": {"sampler": "static"}}


def test_clients_that_leave_free_their_rows_and_disturb_nobody(server: Live) -> None:
    with server.client() as client:
        alone = [reply_of(client, long_request(number), False) for number in range(4)]
        left = []
        for number in range(4):
            sock = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
            asked = {**long_request(number), "stream": number % 2 == 0, "max_tokens": 120, "n": 4}  # seconds of work
            body = json.dumps(asked).encode()
            head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            left.append(sock)
        with ThreadPoolExecutor(4) as crowd:
            running = [crowd.submit(reply_of, client, long_request(n), n % 2 == 1) for n in range(4)]
            while server.scheduler.figures().rows == 0 and not all(one.done() for one in running):
                time.sleep(0.002)
            for sock in left:
                sock.close()
            assert [one.result() for one in running] == alone
    before = time.monotonic()
    assert server.free_within(1), "rows of clients that left are still there"
    assert time.monotonic() - before < 1
    ended = server.scheduler.figures().endings
    assert ended["aborted"] >= 1 and ended["error"] == 0


def test_a_server_that_stops_answers_what_is_under_way(served: Model) -> None:
    with live(served, grace=60.0) as short, short.client() as client, ThreadPoolExecutor(4) as crowd:
        alone = reply_of(client, long_request(0), False)
        running = [crowd.submit(reply_of, client, long_request(0), n % 2 == 1) for n in range(4)]
        while short.scheduler.figures().rows < 4 and not any(one.done() for one in running):
            time.sleep(0.002)
        short.server.handle_exit(15, None)
        assert [one.result() for one in running] == [alone] * 4
        with pytest.raises(httpx.ConnectError), httpx.Client() as other:
            other.get(f"{short.url}/health")
    assert short.scheduler.state == "closed"
