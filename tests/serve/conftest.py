"""An application over the tiny model, whose rows a stand-in decodes one after the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the server is not installed: pip install -e '.[serve]'")

import httpx

from dllm import load
from dllm.parts import Defaults, Model, Sampling, Scheduler, ServeSettings, Service, composed, plain_config
from tests.serve.bodies import mini_defaults
from tests.serve.stand_in import OneByOne

ASK = {"messages": [{"role": "user", "content": "w5 w7 w9"}]}
CHAT = "/v1/chat/completions"
HOT = {"temperature": 1.0, "seed": 5}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="session")
def served(tiny: Path) -> Model:
    return load(tiny)


@pytest.fixture(scope="session")
def written_model(written: Path) -> Model:
    return load(written)


@pytest.fixture(scope="session")
def mini_model() -> Model:
    return load("mini-llada")


@pytest.fixture(scope="session")
def mini(mini_model: Model) -> Defaults:
    """A server of the shipped model, with the usual settings."""
    return mini_defaults(mini_model)


@cache
def usual() -> Any:
    """The configuration of a command line without settings."""
    return composed([])


def defaults_of(model: Model) -> Defaults:
    """A server's defaults, as the command line composes them. The tiny model's texts would end at once."""
    parts = {group: plain_config(usual()[group]) for group in ("sampler", "blocks", "cache", "eos")}
    return Defaults(model, "tiny", **parts, sampling=Sampling(forbid_eos=True), gen_length=16)


def writing(model: Model) -> Defaults:
    """The same of the model whose tokens are printable signs, which may end a text."""
    return replace(defaults_of(model), sampling=Sampling(), gen_length=24)


def config_of(model: Model) -> dict[str, Any]:
    """The settings of the model, as a command line composes them."""
    return {"model": {**plain_config(usual().model), "path": str(model.path), "prompt": "w5 w7 w9"}}


class Place:
    """A server without a socket. ``ask`` posts, ``get`` gets; each call has a fresh client."""

    def __init__(
        self, model: Model, scheduler: OneByOne | None = None, defaults: Defaults | None = None, **settings: Any
    ) -> None:
        self.scheduler = scheduler or OneByOne(model)
        self.scheduler.start()
        chosen = replace(ServeSettings(), **settings)
        defaults = defaults or defaults_of(model)
        self.service = Service(self.scheduler, defaults, chosen, config_of(model))  # type: ignore[arg-type]
        self.app = self.service.app()

    def client(self, base: str = "http://127.0.0.1:8000") -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=base)

    def run(self, act: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
        async def within() -> Any:
            async with self.client() as client:
                return await act(client)

        return asyncio.run(within())

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.run(lambda client: client.request(method, path, **options))

    def ask(self, path: str = CHAT, **body: Any) -> httpx.Response:
        return self.call("POST", path, json={**(ASK if path == CHAT else {"prompt": "w5 w7"}), **body})

    def close(self) -> None:
        self.scheduler.close(0)


@pytest.fixture(scope="session")
def place(served: Model) -> Iterator[Place]:
    made = Place(served)
    yield made
    made.close()


@pytest.fixture(scope="session")
def writer(written_model: Model) -> Iterator[Place]:
    """A server of the model that takes constraints."""
    made = Place(written_model, defaults=writing(written_model))
    yield made
    made.close()


@pytest.fixture
def placed(served: Model) -> Iterator[Callable[..., Place]]:
    """Makes servers with settings of their own."""
    made: list[Place] = []

    def make(scheduler: OneByOne | None = None, **settings: Any) -> Place:
        made.append(Place(served, scheduler, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def events(reply: httpx.Response) -> list[tuple[str | None, Any]]:
    """Name and data of every event of a stream; the last data is not JSON."""
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in reply.text.strip().split("\n\n"):
        lines = [line.partition(": ") for line in block.splitlines()]
        name = next((value for key, _, value in lines if key == "event"), None)
        data = [value for key, _, value in lines if key == "data"]
        if data:
            found.append((name, data[0] if data[0] == "[DONE]" else json.loads(data[0])))
    return found


def streamed_text(reply: httpx.Response, choice: int = 0) -> str:
    """The sum of a choice's chunks."""
    pieces = [one for _, data in events(reply) if data != "[DONE]" for one in data.get("choices", ())]
    return "".join(
        one["delta"].get("content", "") if "delta" in one else one["text"] for one in pieces if one["index"] == choice
    )


def error_of(reply: httpx.Response) -> dict[str, Any]:
    """The error, which has OpenAI's four fields whatever went wrong."""
    assert reply.headers["content-type"] == "application/json"
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"] and error["type"]
    assert "Traceback" not in reply.text and 'File "' not in reply.text
    return dict(error)


@pytest.fixture(scope="module")
def mini_place(mini_model: Model) -> Iterator[Place]:
    """The demo model under a scheduler of its own, under static shapes."""
    scheduler: Any = Scheduler(mini_model, "static")
    place = Place(mini_model, scheduler, mini_defaults(mini_model))
    yield place
    place.close()
