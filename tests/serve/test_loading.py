"""The server's socket while the model loads: how far it is, and ask again."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest

from dllm.models.load_progress import Loaded, latest, load_progress
from dllm.serve.loading import answering_meanwhile
from dllm.serve.server import bound_socket


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with bound_socket("127.0.0.1", 0) as made:
        yield made


def address(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_health_says_how_far_the_loading_is(listening: socket.socket) -> None:
    with answering_meanwhile(listening), load_progress("m") as watch:
        before = httpx.get(f"{address(listening)}/health")
        watch(Loaded(420, 1000, "layer 13 of 32"))
        meanwhile = httpx.get(f"{address(listening)}/health?x=1")
        asked = httpx.post(f"{address(listening)}/v1/chat/completions", json={"messages": "x" * 100_000})
        bare = httpx.head(f"{address(listening)}/health")
    assert before.status_code == 503 and before.json() == {"status": "loading", "share": None, "part": None}
    assert meanwhile.json() == {"status": "loading", "share": 0.42, "part": "layer 13 of 32"}
    assert asked.status_code == bare.status_code == 503 and int(asked.headers["retry-after"]) > 0
    assert asked.json()["error"]["message"] == "the model is still loading (42%, layer 13 of 32). Ask again."
    assert asked.json()["error"]["code"] == "loading" and latest() is None


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
