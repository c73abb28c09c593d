"""Limits come before work: what a refused request costs, and silent connections."""

from __future__ import annotations

import json
import re
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from dllm.parts import (
    MAX_BYTES,
    Defaults,
    Limits,
    Model,
    ReadCanvas,
    ReadEntry,
    Reading,
    ReadJob,
    ReadQuery,
    ReadQueue,
    without_port,
)
from dllm.serve.engine import reads as reads_module
from tests.serve.conftest import Place
from tests.serve.live import live

CHAT, TEXT, RESPONSES, DECISIONS = "chat/completions", "completions", "responses", "decisions"
SIZE = MAX_BYTES - 2000


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def asked(*questions: Any, **more: Any) -> dict[str, Any]:
    return {"input": "x", "questions": list(questions), **more}


def choice(*values: str) -> dict[str, Any]:
    return {"type": "choice", "choices": [{"value": value} for value in values]}


HOSTILE: dict[str, tuple[str, Callable[[], Any]]] = {
    "words in chat": (CHAT, lambda: said("hello world " * (SIZE // 12))),
    "accents in chat": (CHAT, lambda: said("e\u0301" * (SIZE // 7))),
    "letters in messages": (CHAT, lambda: {"messages": [{"role": "user", "content": "a"}] * 20_000}),
    "parts of a message": (
        CHAT,
        lambda: {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 25_000}]},
    ),
    "stops": (CHAT, lambda: {**said("x"), "stop": ["a"] * 100_000}),
    "a long stop": (CHAT, lambda: {**said("x"), "stop": "a" * SIZE}),
    "tools": (CHAT, lambda: {**said("x"), "tools": [{"type": "function", "function": {"name": "a"}}] * 15_000}),
    "a long role": (CHAT, lambda: {"messages": [{"role": "a" * SIZE, "content": "x"}]}),
    "names": (CHAT, lambda: {**said("x"), **{f"a{number}": 1 for number in range(60_000)}}),
    "lists": (CHAT, lambda: {**said("x"), "stop": [[]] * (SIZE // 4)}),
    "a schema": (
        CHAT,
        lambda: {
            **said("x"),
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "f", "schema": {"properties": {f"p{number}": {} for number in range(25_000)}}},
            },
        },
    ),
    "a counted regex": (CHAT, lambda: {**said("x"), "response_format": {"type": "regex", "pattern": "a{1,100000}"}}),
    "a text": (TEXT, lambda: {"prompt": "hello world " * (SIZE // 12)}),
    "numbers": (TEXT, lambda: {"prompt": [5] * (SIZE // 4)}),
    "prompts": (TEXT, lambda: {"prompt": ["a"] * (SIZE // 6)}),
    "texts of a canvas": (TEXT, lambda: {"prompt": "x", "diffusion": {"canvas": ["hello world " * (SIZE // 12), 4]}}),
    "an input": (RESPONSES, lambda: {"input": "hello world " * (SIZE // 12)}),
    "items": (RESPONSES, lambda: {"input": [{"role": "user", "content": "a"}] * 20_000}),
    "long values": (DECISIONS, lambda: asked(choice("Kai " * 100_000, "Emma " * 100_000))),
    "values of the most": (
        DECISIONS,
        lambda: asked(choice(*(chr(97 + number % 26) * 250 + str(number) for number in range(255)))),
    ),
    "alternatives": (DECISIONS, lambda: asked(*(choice(*map(str, range(255))) for _ in range(200)))),
    "questions": (DECISIONS, lambda: asked(*({"type": "predicate"} for _ in range(300)))),
    "a state": (DECISIONS, lambda: asked(choice("a", "b"), input="hello world " * (SIZE // 12))),
    "a template": (DECISIONS, lambda: asked(choice("a", "b"), diffusion={"template": "hello " * 100_000 + "{slot}"})),
}


def peak() -> int:
    """Bytes that this process has had since its mark was taken back."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return 0 if found is None else int(found[1]) << 10


@pytest.fixture(scope="module")
def mini_place(mini_model: Model, mini: Defaults) -> Iterator[Place]:
    mini.warm(lambda: True)
    made = Place(mini_model, defaults=mini)
    made.ask(**said("x" * 40_000))  # the first of its kind makes what is made once
    yield made
    made.close()


@pytest.mark.program  # CPU seconds, which a busy machine stretches
@pytest.mark.parametrize("name", HOSTILE)
def test_a_refused_request_costs_little(mini_place: Place, name: str) -> None:
    route, make = HOSTILE[name]
    body = make()
    reply, first, memory = measured(mini_place, route, body)
    assert reply.status_code in (400, 413), reply.text[:200]
    seconds = min(first, measured(mini_place, route, body)[1])  # a busy machine only adds
    assert memory < 50 << 20 and seconds < 0.2, (name, seconds, memory >> 20)


def measured(place: Place, route: str, body: Any) -> tuple[httpx.Response, float, int]:
    """The reply to a body, the CPU seconds of this process that it took, and the bytes by which its peak rose."""
    content = json.dumps(body, separators=(",", ":")).encode()
    assert len(content) <= MAX_BYTES
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pytest.skip("the system does not tell the peak of a process's memory")
    memory, spent = peak(), resource.getrusage(resource.RUSAGE_SELF)
    headers = {"content-type": "application/json"}
    reply = place.call("POST", f"/v1/{route}", content=content, headers=headers)
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - spent.ru_utime - spent.ru_stime
    return reply, seconds, peak() - memory


@pytest.mark.program
@pytest.mark.parametrize(("name", "body"), [
    ("blanks that the template trims", said("x" + " " * SIZE)),
    ("blanks that cannot be ASCII", said("\u3000" * (SIZE // 6) + "x")),
    ("a thought that the template drops", {"messages": [
        {"role": "assistant", "content": "a", "reasoning_content": "hello " * (SIZE // 6)},
        {"role": "user", "content": "<|eot_id|>"}]}),
    ("a name that the template drops", {"messages": [
        {"role": "user", "content": "<|eot_id|>", "name": "<|eot_id|>" * (SIZE // 10)}]}),
    ("a field that nobody knows", {**said("x"), "zzz": "hello " * (SIZE // 6)}),
])  # fmt: skip
def test_what_a_prompt_does_not_hold_costs_little(mini_place: Place, name: str, body: dict[str, Any]) -> None:
    """Such a request is sound, and as cheap as a refused one beside the decoding of four tokens."""
    tries = [measured(mini_place, CHAT, {**body, "max_tokens": 4}) for _ in range(2)]  # the first may load something
    reply, seconds, memory = min(tries, key=lambda one: one[1])
    assert reply.status_code == 200, reply.text[:200]
    assert memory < 50 << 20 and seconds < 0.3, (name, seconds, memory >> 20)


@pytest.mark.parametrize("host", ["[::1]", "[::1]:80", "127.0.0.1:8000"])
def test_a_port_is_no_part_of_a_name(host: str) -> None:
    assert without_port(host) in ("::1", "127.0.0.1")


@pytest.mark.parametrize("host", ["[::1]evil.example", "[::1]:80evil", "[::1]:", "[::1", "[::1]]", "[::1]:80:80"])
def test_what_stands_behind_a_bracket_is_no_port(host: str) -> None:
    assert without_port(host) not in ("::1", "127.0.0.1")


def test_silent_connections_are_closed_and_yield(served: Model) -> None:
    """Some never speak, one speaks a letter at a time, one is silent after its reply; more than may be open."""
    with live(served, read_timeout=1.0, max_connections=20) as server, server.client() as client:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        silent = [socket.create_connection(address) for _ in range(60)]
        assert client.get("/health").status_code == 200 and client.get("/v1/models").status_code == 200
        slow = socket.create_connection(address)
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        began, open_ = time.monotonic(), True
        while open_ and time.monotonic() - began < 20:
            time.sleep(0.2)
            try:
                slow.sendall(b"X")
                slow.settimeout(0.01)
                open_ = slow.recv(100) != b""
            except TimeoutError:
                continue
            except OSError:
                open_ = False
        assert not open_
        for one in silent:
            one.settimeout(10)
            try:
                assert one.recv(1) == b""
            except ConnectionError:
                continue
        assert client.get("/health").status_code == 200  # the same connection, idle for longer than read_timeout


def test_out_of_memory_halves_the_rows_of_a_forward(served: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def few(model: Model, queries: list[ReadQuery], *more: Any) -> list[Reading]:
        if len(queries) > 3:
            raise torch.OutOfMemoryError
        return [Reading(((0.0,),), (5,), 0, 1, 1) for _ in queries]

    monkeypatch.setattr(reads_module, "read_canvases", few)
    queue = ReadQueue(served, Limits())
    canvases = [ReadCanvas((5, 6, number, 7), frozenset({3}), 3) for number in range(6)]
    group = [ReadQuery(one, ((3, (5,)),)) for one in canvases]
    queue.add(ReadEntry(1, ReadJob([group], time.monotonic() + 60), lambda event: None), 0.0)
    assert len(queue.coming_units()) == 6 and queue.turn() == ([], []) and len(queue.coming_units()) == 3
