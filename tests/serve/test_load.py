"""J4: whatever else is asked meanwhile, a reply is the one that the same request gets alone.

At length, 200 requests of each shipped model in each runtime, 16 at once:

    DLLM_LAWS=all python -m pytest tests/serve/test_load.py -s                            # minutes
    DLLM_LAWS=all python -m pytest tests/serve/test_load.py -s -k "mini-dream and static"
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dllm import load
from dllm.parts import Model
from tests.serve.bodies import mini_defaults
from tests.serve.conftest import defaults_of
from tests.serve.live import Live, live
from tests.serve.load import MINI, TINY, drawn, reply_of
from tests.support.harness import full

RUNTIMES = ("eager", "static")
CASES = [(name, runtime) for name in (("mini-llada", "mini-dream") if full() else ("tiny",)) for runtime in RUNTIMES]
REQUESTS, TOGETHER = (200, 16) if full() else (10, 5)


@pytest.fixture(params=CASES, ids="-".join)
def server(request: pytest.FixtureRequest, served: Model) -> Iterator[Live]:
    name, runtime = request.param
    model = served if name == "tiny" else load(name)
    defaults = defaults_of(model) if name == "tiny" else replace(mini_defaults(model), name=name)
    with live(model, runtime=runtime, defaults=defaults, timeout=600.0) as started:
        started.talk = TINY if name == "tiny" else MINI
        yield started


def test_a_reply_is_the_same_alone_and_under_load(server: Live) -> None:
    dice = random.Random(4)
    bodies = [drawn(dice, server.talk) for _ in range(REQUESTS)]
    with server.client() as client, ThreadPoolExecutor(TOGETHER) as crowd:
        alone = [reply_of(client, body, stream=False) for body in bodies]
        found = list(crowd.map(lambda number: reply_of(client, bodies[number], number % 2 == 1), range(REQUESTS)))
    differ = [number for number in range(REQUESTS) if alone[number] != found[number]]
    refused = [reply[0][0] for reply in alone if reply[0][1] == "refused"]
    print(f"\n{REQUESTS - len(differ)} of {REQUESTS} equal, {TOGETHER} at once; {len(refused)} refused by their parts")
    assert differ == [], [(bodies[n], alone[n], found[n]) for n in differ[:2]]
    assert len(refused) <= REQUESTS // 3, refused
    assert len({text for reply in alone for text, _, _ in reply}) > REQUESTS // 3
    assert {reply[0][1] for reply in alone} >= {"stop", "length"} or not full()


def test_a_stream_sends_no_token_that_is_replaced(served: Model) -> None:
    """A block's text is sent when it closes: replies are those of requests that wait for the whole."""
    rule = {"name": "joint_threshold", "threshold": 0.0, "edit_threshold": 0.0, "post_edit_steps": 3}
    diffusion = {"sampler": rule, "block_length": 8}
    bodies = [{"prompt": f"w{at} w{at + 9}", "max_tokens": 24, "diffusion": diffusion} for at in range(1, 5)]
    started = live(served, runtime="eager", defaults=defaults_of(served), timeout=600.0)
    with started as server, server.client() as client:
        whole, streamed = ([reply_of(client, body, stream) for body in bodies] for stream in (False, True))
    assert streamed == whole and all(reply[0][0] for reply in whole)
