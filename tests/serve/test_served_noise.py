"""A model of noise behind the server: mixed requests, streams, snapshots, given text, and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from dllm import load
from dllm.parts import Model
from tests.serve.live import Live, live_noise
from tests.serve.load import reply_of
from tests.support.harness import full
from tests.support.tiny import MODELS, make_tiny

REQUESTS, TOGETHER = (200, 16) if full() else (14, 7)
MASKED: list[dict[str, Any]] = [  # what is asked of models of masks
    {"diffusion": {"sampler": "confidence"}},
    {"temperature": 0.7},
    {"diffusion": {"block_length": 32}},
    {"diffusion": {"cache": "dual"}},
    {"diffusion": {"blocks": "whole"}},
    {"diffusion": {"threshold": 0.9}},
    {"diffusion": {"sampler": {"name": "renoise", "t_max": 0.1}}},
    {"diffusion": {"eos": "eotp"}},
    {"diffusion": {"sampler": {"name": "credit", "inner": "renoise"}}},
]


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(make_tiny(tmp_path_factory.mktemp("noise") / "dg_dev", MODELS / "dg_dev"), dtype="float32")


@pytest.fixture(scope="module")
def server(noisy: Model) -> Iterator[Live]:
    with live_noise(noisy, 6, 16) as started:
        yield started


def drawn(dice: random.Random) -> dict[str, Any]:
    """A request: most with settings of its own, some of masked-style settings."""
    words = " ".join(f"w{dice.randint(2, 59)}" for _ in range(dice.randint(1, 12)))
    body: dict[str, Any] = {"prompt": words, "seed": dice.randint(0, 9), "max_tokens": dice.choice([8, 12, 16, 24])}
    if dice.random() < 0.2:
        return {**body, **dice.choice(MASKED)}
    sampler = {"name": "renoise", "steps": dice.randint(2, 9), "entropy_bound": dice.choice([0.05, 0.5, 3.0])}
    if dice.random() < 0.5:
        sampler |= {"t_min": 0.2, "t_max": dice.choice([0.5, 1.0]), "stop_entropy": 0.3}
    body["diffusion"] = {"sampler": sampler, "cache": dice.choice(["none", "finished", "finished"])}
    if dice.random() < 0.2:
        body["n"] = 2
    if dice.random() < 0.2:
        del body["max_tokens"]
        body["diffusion"]["canvas"] = [f"w{dice.randint(2, 59)}", 5, f"w{dice.randint(2, 59)}", 6]
    elif dice.random() < 0.3:
        body["stop"] = [f"w{dice.randint(2, 59)}"]
    return body


def test_mixed_requests_get_under_load_what_they_get_alone(server: Live) -> None:
    dice = random.Random(3)
    bodies = [drawn(dice) for _ in range(REQUESTS)]
    with server.client() as client, ThreadPoolExecutor(TOGETHER) as crowd:
        alone = [reply_of(client, body, stream=False) for body in bodies]
        found = list(crowd.map(lambda number: reply_of(client, bodies[number], number % 2 == 1), range(REQUESTS)))
    differ = [number for number in range(REQUESTS) if alone[number] != found[number]]
    assert differ == [], [(bodies[n], alone[n], found[n]) for n in differ[:2]]
    refused = [body for body, reply in zip(bodies, alone, strict=True) if reply[0][1] == "refused"]
    assert 0 < len(refused) < REQUESTS // 3
    assert all(any(body.get(key) == value for one in MASKED for key, value in one.items()) for body in refused)


@pytest.mark.parametrize("settings", MASKED, ids=str)
def test_settings_of_masks_are_refused_with_what_works(server: Live, settings: dict[str, Any]) -> None:
    with server.client() as client:
        reply = client.post("/v1/completions", json={"prompt": "w5", **settings})
    assert reply.status_code == 400, reply.text
    message = reply.json()["error"]["message"]
    assert "se " in message or "et " in message or "must" in message, message  # Use, Set, Choose: the way out


def test_given_text_stays_inside_a_canvas(server: Live) -> None:
    with server.client() as client:
        asked = {"prompt": "w5 w7", "diffusion": {"canvas": ["w9 w9", 4, "w11", 9, "w13"]}}
        choice = client.post("/v1/completions", json=asked).json()["choices"][0]
    words = choice["text"].split("w")[1:]
    assert words[:2] == ["9", "9"] and "11" in words and words[-1] == "13" and choice["diffusion"]["nfe"] > 2


def snapshots_of(client: httpx.Client, body: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """The pictures of a stream, and the pieces of its text."""
    shots, texts = list[dict[str, Any]](), list[str]()
    with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply:
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            data = json.loads(line[6:])
            if "diffusion" in data:
                shots.append(data["diffusion"])
            texts += [choice["text"] for choice in data["choices"] if choice["text"]]
    return shots, texts


def test_a_stream_sends_whole_canvases_and_snapshots_show_what_the_next_forward_sees(server: Live) -> None:
    body = {"prompt": "w5 w7", "max_tokens": 24, "seed": 4, "diffusion": {"snapshots": True}}
    with server.client() as client:
        shots, texts = snapshots_of(client, body)
        whole = client.post("/v1/completions", json={**body, "diffusion": {}}).json()["choices"][0]
    assert "".join(texts) == whole["text"]
    hidden = [[at for at, word in enumerate(shot["words"]) if word is None] for shot in shots]
    assert {len(positions) for positions in hidden} <= {24, 16, 8, 0} and hidden[-1] == []
    noise = set[tuple[str, ...]]()
    for shot, positions in zip(shots, hidden, strict=True):
        shown = shot["shown"]
        assert sorted(map(int, shown)) == positions
        assert all(0 <= sure <= 1 for _, sure in shot["guesses"].values())
        noise.add(tuple(shown.values()))
    assert len(noise) > len(texts)  # it changes between commits
    for before, after in zip(shots, shots[1:], strict=False):  # a canvas becomes the likeliest tokens of its last turn
        fresh = [at for at, word in enumerate(after["words"]) if word is not None and before["words"][at] is None]
        assert len(fresh) in (0, 8)
