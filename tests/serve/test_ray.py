"""``engine=ray``: two replicas behind Ray Serve give the replies of one server."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from dllm.parts import Model, ServeSettings, build_part, composed, resolved
from tests.serve.live import live
from tests.serve.load import drawn, reply_of

serve = pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install -e '.[ray]'")


@pytest.fixture(scope="module")
def said() -> list[str]:
    """Lines that the driver printed of the replicas' logs."""
    return []


@pytest.fixture(scope="module")
def address(tiny: Path, said: list[str]) -> Iterator[str]:
    from dllm.app.engines import replica_board
    from dllm.parts import replicas_behind

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = resolved(
        composed(
            [
                "task=serve",
                "engine=ray",
                "engine.replicas=2",
                "engine.cpus=0.1",
                f"model.path={tiny}",
                "sampling.forbid_eos=true",
                "gen_length=16",
            ]
        )
    )
    engine = build_part("engine", config["engine"])
    engine.check(config)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(replica_board, "complain", said.append)
        with replicas_behind(serve, engine, config, ServeSettings(port=port)) as ready:
            assert ready(threading.Event())
            yield f"http://127.0.0.1:{port}"


def test_replicas_reply_as_one_server_does(address: str, served: Model) -> None:
    dice = random.Random(6)
    bodies = [drawn(dice) for _ in range(12)]
    with live(served) as one, one.client() as client:
        alone = [reply_of(client, body, stream=False) for body in bodies]
    with httpx.Client(base_url=address, timeout=120) as client, ThreadPoolExecutor(6) as crowd:
        found = list(crowd.map(lambda number: reply_of(client, bodies[number], number % 2 == 1), range(12)))
        assert client.get("/health").json() == {"status": "ready"}
        assert client.post("/v1/completions", json={"prompt": "w1", "n": 0}).status_code == 400
    assert found == alone


def figures(client: httpx.Client) -> dict[str, float]:
    """Every value of ``/metrics`` by what is before it."""
    lines = client.get("/metrics").text.splitlines()
    return {head: float(value) for head, _, value in (one.rpartition(" ") for one in lines if not one.startswith("#"))}


def until(holds: Callable[[], bool]) -> bool:
    """Whether it holds within 20 s."""
    end = time.monotonic() + 20
    while not (found := holds()) and time.monotonic() < end:
        time.sleep(0.2)
    return found


def test_metrics_are_those_of_all_replicas(address: str, said: list[str]) -> None:
    replies = 'dllm_http_requests_total{route="completions",status="200"}'
    with httpx.Client(base_url=address, timeout=120) as client:
        time.sleep(3)  # a replica tells its figures twice a second
        before = figures(client).get(replies, 0.0)
        with ThreadPoolExecutor(8) as crowd:
            body = {"prompt": "w1", "max_tokens": 8}
            sent = crowd.map(lambda _: client.post("/v1/completions", json=body), range(24))
            ids = [reply.headers["x-request-id"] for reply in sent]
        assert until(lambda: figures(client)[replies] == before + 24)
        pages = [figures(client) for _ in range(10)]  # whichever replica answers
        assert [page[replies] for page in pages] == [before + 24] * 10
        assert {page['dllm_state{state="ready"}'] for page in pages} == {2}
    assert until(lambda: all(any(ident in line for line in said) for ident in ids))


def test_a_client_that_leaves_frees_its_row(address: str) -> None:
    body = {"prompt": "w1", "max_tokens": 120, "stream": True, "diffusion": {"sampler": "static"}}
    with httpx.Client(base_url=address, timeout=120) as client:
        for _ in range(2):
            with client.stream("POST", "/v1/completions", json=body) as reply:
                next(reply.iter_lines())
        assert until(lambda: figures(client)["dllm_rows"] == 0)
