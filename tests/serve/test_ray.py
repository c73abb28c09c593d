"""``engine=ray``: two replicas behind Ray Serve give the replies of one server."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from dllm.app.command_line.main import resolved
from dllm.compose.parts import build_part, composed
from dllm.models.bundle import Model
from dllm.serve.settings import ServeSettings
from tests.serve.live import live
from tests.serve.load import drawn, reply_of

serve = pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install 'dllm[ray]'")


@pytest.fixture(scope="module")
def address(tiny: Path) -> Iterator[str]:
    from dllm.app.engines.ray_serve import start_replicas, stop_replicas

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = resolved(composed([
        "task=serve", "engine=ray", "engine.replicas=2", "engine.cpus=0.1", f"model.path={tiny}",
        "sampling.forbid_eos=true", "gen_length=16",
    ]))  # fmt: skip
    engine = build_part("engine", config["engine"])
    engine.check(config)
    start_replicas(serve, engine, config, ServeSettings(port=port))
    yield f"http://127.0.0.1:{port}"
    stop_replicas(serve, 30)


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


def test_a_client_that_leaves_frees_its_row(address: str) -> None:
    body = {"prompt": "w1", "max_tokens": 120, "stream": True, "diffusion": {"sampler": "static"}}
    with httpx.Client(base_url=address, timeout=120) as client:
        for _ in range(2):
            with client.stream("POST", "/v1/completions", json=body) as reply:
                next(reply.iter_lines())
        until = time.monotonic() + 20
        while time.monotonic() < until:
            pages = [client.get("/metrics").text for _ in range(6)]  # of either replica
            if all("dllm_rows 0.0" in page for page in pages):
                return
            time.sleep(0.2)
    raise AssertionError("a row is still there")
