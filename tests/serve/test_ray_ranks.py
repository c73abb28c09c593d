"""``engine=ray model.tp=2``: a served replica of two ranks gives the replies of one process."""

from __future__ import annotations

import random
import socket
import threading
from pathlib import Path

import httpx
import pytest

from dllm.parts import Model, ServeSettings, build_part, composed, resolved
from tests.serve.live import live
from tests.serve.load import drawn, reply_of

pytestmark = pytest.mark.program
serve = pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install -e '.[ray]'")


def test_a_replica_of_two_ranks_replies_as_one_server_does(tiny: Path, served: Model) -> None:
    from dllm.parts import replicas_behind

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = resolved(
        composed(
            [
                "task=serve",
                "engine=ray",
                "engine.replicas=1",
                "engine.cpus=0.1",
                f"model.path={tiny}",
                "model.tp=2",
                "sampling.forbid_eos=true",
                "gen_length=16",
            ]
        )
    )
    engine, dice = build_part("engine", config["engine"]), random.Random(6)
    engine.check(config)
    bodies = [drawn(dice) for _ in range(6)]
    with live(served) as one, one.client() as client:
        alone = [reply_of(client, body, stream=False) for body in bodies]
    with replicas_behind(serve, engine, config, ServeSettings(port=port)) as ready:
        assert ready(threading.Event())
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            found = [reply_of(client, body, stream=False) for body in bodies]
            assert "dllm_ranks 2.0" in client.get("/metrics").text
    assert found == alone
