"""A server on a free port, in a thread of this process, with the real scheduler."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from dllm.parts import (
    Defaults,
    DrainingServer,
    Model,
    Scheduler,
    ServeSettings,
    Service,
    bound_socket,
    composed,
    plain_config,
    server_of,
)
from tests.serve.conftest import config_of, defaults_of
from tests.serve.load import TINY, Talk


@dataclass
class Live:
    """url: without a slash at its end. talk: what its model is asked."""

    url: str
    scheduler: Any
    server: DrainingServer
    thread: threading.Thread
    talk: Talk = TINY

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=600, **options)

    def free_within(self, seconds: float) -> bool:
        """Whether all rows leave the batch by then."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = self.scheduler.figures()
            if found.rows == found.waiting == 0:
                return True
            time.sleep(0.01)
        return False


def live_noise(model: Model, steps: int, length: int) -> AbstractContextManager[Live]:
    """Of a small model of noise, with the published parts: so many steps a canvas, answers of that length."""
    config = composed(["experiment=diffusion_gemma", "blocks.block_length=8", f"sampler.steps={steps}"])
    parts = {group: plain_config(config[group]) for group in ("sampler", "blocks", "cache", "eos")}
    return live(model, defaults=Defaults(model, "dg_dev", **parts, gen_length=length), timeout=600.0)


@contextmanager
def live(
    model: Model, scheduler: Any = None, runtime: str = "eager", defaults: Defaults | None = None, **settings: Any
) -> Iterator[Live]:
    """Starts it, and stops it in the end."""
    chosen = ServeSettings(**{"port": 0, **settings})
    scheduler = scheduler or Scheduler(model, runtime, chosen.limits)
    listening = bound_socket(chosen.host, chosen.port)
    service = Service(scheduler, defaults or defaults_of(model), chosen, config_of(model))
    server = server_of(service.app(), scheduler, chosen)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.005)
    yield Live(f"http://127.0.0.1:{listening.getsockname()[1]}", scheduler, server, thread)
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


def alone_and_under_load(
    server: Live, bodies: Sequence[dict[str, Any]], reply_of: Callable[[httpx.Client, dict[str, Any], bool], list[Any]]
) -> list[list[Any]]:
    """The replies to ``bodies`` one after the other. AssertionError if one differs where they come at once, every
    second one streamed. reply_of: to a body, streamed or not."""
    numbers = range(len(bodies))
    with server.client() as client, ThreadPoolExecutor(16) as crowd:
        alone = [reply_of(client, body, False) for body in bodies]
        found = list(crowd.map(lambda number: reply_of(client, bodies[number], number % 2 == 1), numbers))
    differ = [number for number in numbers if alone[number] != found[number]]
    assert differ == [], [(bodies[n], alone[n], found[n]) for n in differ[:2]]
    return alone
