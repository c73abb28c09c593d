"""Whatever OpenAI's client asks for, a reply under load is the one that the same request gets alone: texts, schemas,
calls of tools, choices, completions and responses, plain and streamed, of which a full queue sends some away.

At length, 200 requests: DLLM_LAWS=all python -m pytest tests/serve/test_mixed_load.py -s
"""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from dllm.parts import Draw, Limits, LoadProgress, Model, answering_meanwhile, bound_socket, latest, load_progress
from dllm.tasks.mini import tasks
from tests.serve.bodies import mini_defaults
from tests.serve.live import live
from tests.support.harness import full

openai = pytest.importorskip("openai", reason="pip install openai")
REQUESTS, TOGETHER = (200, 32) if full() else (10, 8)
NAMES = {"type": "array", "items": {"enum": ["Kai", "Emma", "Hugo", "Ada"]}, "minItems": 2, "maxItems": 4}
SEATS = {"type": "object", "properties": {"names": NAMES}, "required": ["names"], "additionalProperties": False}
FREE = {"type": "object", "properties": {"free": {"type": "boolean"}}, "required": ["free"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": parameters}}
    for name, parameters in (("seat", SEATS), ("close", FREE))
]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "seats", "schema": SEATS}}
KINDS: dict[str, dict[str, Any]] = {
    "text": {},
    "hot": {"temperature": 0.7},
    "schema": {"response_format": SCHEMA, "max_tokens": 24},
    "choice": {"extra_body": {"guided_choice": ["yes", "no", "perhaps"]}},
    "regex": {"extra_body": {"structured_outputs": {"regex": "[A-D](,[A-D]){3}"}}},
    "named": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "seat"}}, "max_tokens": 28},
    "required": {"tools": TOOLS, "tool_choice": "required", "max_tokens": 48},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "stop": {"stop": ['", "']},
    "two": {"n": 2, "temperature": 0.5},
    "parts": {"extra_body": {"diffusion": {"sampler": "eb", "cache": "dual"}}},
}


def told(message: Any) -> Any:
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return message.content, calls


def rounded(logprobs: Any) -> Any:
    """Log-probabilities to three digits: products of another batch round otherwise."""
    return [(one.token, round(one.logprob, 3)) for one in logprobs.content] if logprobs else None


def of_chat(client: Any, body: dict[str, Any]) -> Any:
    reply = client.chat.completions.create(model="mini-llada", **body)
    return [(told(one.message), one.finish_reason, rounded(one.logprobs)) for one in reply.choices]


def of_stream(client: Any, body: dict[str, Any]) -> Any:
    """The same, put together from chunks."""
    texts: dict[int, str | None] = {}
    ends: dict[int, Any] = {}
    calls: dict[int, list[list[str]]] = {}
    for chunk in client.chat.completions.create(model="mini-llada", stream=True, **body):
        for choice in chunk.choices:
            at, delta = choice.index, choice.delta
            texts[at] = (texts.get(at) or "") + (delta.content or "")
            for call in delta.tool_calls or ():
                mine = calls.setdefault(at, [])
                if call.index == len(mine):
                    mine.append([call.function.name, ""])
                mine[call.index][1] += call.function.arguments
            if choice.finish_reason:
                ends[at] = choice.finish_reason, rounded(choice.logprobs)
    found = {at: [(name, text) for name, text in calls.get(at, ())] for at in ends}
    return [((texts[at] or (None if found[at] else ""), found[at]), *ends[at]) for at in sorted(ends)]


def of_response(client: Any, body: dict[str, Any]) -> Any:
    return client.responses.create(model="mini-llada", input=body["messages"]).output_text


def of_response_stream(client: Any, body: dict[str, Any]) -> Any:
    with client.responses.stream(model="mini-llada", input=body["messages"]) as stream:
        return "".join(event.delta for event in stream if event.type == "response.output_text.delta")


def asked(dice: random.Random) -> tuple[str, dict[str, Any]]:
    """A kind of request, and its body."""
    kind = dice.choice([*KINDS, "response", "response"])
    messages = tasks.draw(dice.choice(tasks.SHORT_ANSWERS), Draw(dice)).messages
    seed = {} if kind == "response" else {"seed": dice.randint(0, 9)}
    return kind, {"messages": messages, **seed, **KINDS.get(kind, {})}


def test_every_reply_under_load_is_the_one_alone(mini_model: Model) -> None:
    dice = random.Random(11)
    bodies = [asked(dice) for _ in range(REQUESTS)]

    def reply_of(client: Any, number: int, streams: bool) -> Any:
        kind, body = bodies[number]
        of: Callable[[Any, dict[str, Any]], Any] = (
            (of_response_stream if streams else of_response)
            if kind == "response"
            else of_stream
            if streams
            else of_chat
        )
        return of(client, body)

    limits = Limits(max_rows=4, max_waiting=8 if full() else 3)
    defaults = replace(mini_defaults(mini_model), name="mini-llada")
    with live(mini_model, defaults=defaults, limits=limits, timeout=600.0) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=30, timeout=600)
        alone = [reply_of(client, number, streams=False) for number in range(REQUESTS)]
        with ThreadPoolExecutor(TOGETHER) as crowd:
            found = list(crowd.map(lambda number: reply_of(client, number, number % 2 == 1), range(REQUESTS)))
        told_429 = server.client().get("/metrics").text.count('status="429"')
    differ = [number for number in range(REQUESTS) if alone[number] != found[number]]
    print(f"\n{REQUESTS - len(differ)} of {REQUESTS} equal, {TOGETHER} at once: {dict(Counter(k for k, _ in bodies))}")
    assert differ == [], [(bodies[n], alone[n], found[n]) for n in differ[:2]]
    assert told_429 > 0, "some were sent away, and came back"


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with bound_socket("127.0.0.1", 0) as made:
        yield made


def address(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_health_says_how_far_the_loading_is(listening: socket.socket) -> None:
    with answering_meanwhile(listening), load_progress("m") as watch:
        before = httpx.get(f"{address(listening)}/health")
        watch(LoadProgress(420, 1000, "layer 13 of 32"))
        meanwhile = httpx.get(f"{address(listening)}/health?x=1")
        asked = httpx.post(f"{address(listening)}/v1/chat/completions", json={"messages": "x" * 100_000})
        bare = httpx.head(f"{address(listening)}/health")
        page = httpx.get(f"{address(listening)}/?x=1")
        claude, llama = (httpx.post(f"{address(listening)}{path}").json() for path in ("/v1/messages", "/api/chat"))
    assert before.status_code == 503 and before.json() == {"status": "loading", "share": None, "part": None}
    assert meanwhile.json() == {"status": "loading", "share": 0.42, "part": "layer 13 of 32"}
    assert asked.status_code == bare.status_code == 503 and int(asked.headers["retry-after"]) > 0
    assert asked.json()["error"]["message"] == "the model is still loading (42%, layer 13 of 32). Ask again."
    assert asked.json()["error"]["code"] == "loading" and latest() is None
    assert page.status_code == 503 and page.headers["content-type"] == "text/html; charset=utf-8"
    assert 'http-equiv="refresh"' in page.text and "(42%, layer 13 of 32)" in page.text, (
        "a browser asks again by itself"
    )
    assert claude["error"]["type"] == "overloaded_error" and claude["error"]["message"] == llama["error"]


def test_the_socket_is_handed_over_and_nobody_is_lost(listening: socket.socket) -> None:
    """Who says nothing, or nonsense, keeps it from nobody for long; who comes late is still there afterwards."""
    with answering_meanwhile(listening):
        silent = socket.create_connection(listening.getsockname())
        with socket.create_connection(listening.getsockname()) as odd:
            odd.sendall(b"\x16\x03\x01\r\n\r\n")
            assert odd.recv(100).startswith(b"HTTP/1.1 503")
        assert httpx.get(f"{address(listening)}/health").status_code == 503
    silent.close()
    with socket.create_connection(listening.getsockname()) as late:
        late.sendall(b"here")
        connection, _ = listening.accept()
        with connection:
            assert connection.recv(4) == b"here" and connection.gettimeout() is None


def test_a_load_that_fails_ends_the_answers(listening: socket.socket) -> None:
    with pytest.raises(KeyboardInterrupt), answering_meanwhile(listening):
        raise KeyboardInterrupt
    assert listening.gettimeout() is None
