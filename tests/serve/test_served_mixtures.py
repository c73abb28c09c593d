"""Rules of mixtures behind the server (DMax, ReMix): mixed requests, and what snapshots say of what positions show."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dllm import load
from dllm.parts import Model
from tests.serve.live import alone_and_under_load, live
from tests.serve.load import reply_of
from tests.serve.test_served_noise import snapshots_of
from tests.support.tiny import MODELS, make_tiny

# By the rule: the model, its values of ``threshold``, the caches that it takes, and one that it does not.
RULES: dict[str, tuple[str, list[float], list[Any], str]] = {
    "dmax": ("tiny-diffcoder", [0.0, 0.015, 0.02, 0.5], ["finished", "none"], "focus"),
    "remix": ("tiny-llada", [0.02, 0.05, 0.9], ["none", "prefix"], "dual"),
}


def drawn(dice: random.Random, rule: str) -> dict[str, Any]:
    """Most under the rule; some under ``confidence``, whose rows show plain masks; some that are refused."""
    _, thresholds, caches, refused = RULES[rule]
    words = " ".join(f"w{dice.randint(2, 59)}" for _ in range(dice.randint(1, 24)))
    body: dict[str, Any] = {"prompt": words, "seed": dice.randint(0, 9), "max_tokens": dice.choice([8, 13, 24])}
    sampler: Any = {"name": rule, "threshold": dice.choice(thresholds)}
    if dice.random() < 0.2:
        sampler = {"name": "confidence", "threshold": 0.5}
        body["temperature"] = dice.choice([0, 0.7])
    if dice.random() < 0.2:
        body["stop"] = [f"w{dice.randint(2, 59)}"]
    if dice.random() < 0.2:
        body["n"] = 2
    cache = refused if dice.random() < 0.1 else dice.choice(caches)
    length = dice.choice([4, 4, 8])
    return {**body, "diffusion": {"sampler": sampler, "cache": cache, "blocks": "fixed", "block_length": length}}


def tiny(rule: str, folder: Path) -> Model:
    name = RULES[rule][0]
    return load(make_tiny(folder / name, MODELS / name), dtype="float32")


@pytest.mark.program
@pytest.mark.parametrize("rule", RULES)
def test_a_hundred_mixed_requests_get_under_load_what_they_get_alone(rule: str, tmp_path: Path) -> None:
    dice = random.Random(6)
    bodies = [drawn(dice, rule) for _ in range(100)]
    with live(tiny(rule, tmp_path), timeout=600.0) as server:
        alone = alone_and_under_load(server, bodies, reply_of)
    refused = [body for body, reply in zip(bodies, alone, strict=True) if reply[0][1] == "refused"]
    assert 0 < len(refused) < 25
    assert all(body["diffusion"]["cache"] == RULES[rule][3] for body in refused)


@pytest.mark.program  # seconds
@pytest.mark.parametrize("rule", RULES)
def test_snapshots_say_what_the_next_forward_is_given(rule: str, tmp_path: Path) -> None:
    """As the trace of the same decode does, with its words."""
    chosen = {"sampler": {"name": rule, "threshold": RULES[rule][1][1]}, "blocks": "fixed", "block_length": 8}
    body = {"prompt": "w5 w7 w9", "max_tokens": 24, "diffusion": {**chosen, "cache": "none", "snapshots": True}}
    with live(tiny(rule, tmp_path), timeout=600.0) as server, server.client() as client:
        shots, _ = snapshots_of(client, body)
        asked = {**body, "diffusion": {**body["diffusion"], "snapshots": False, "trace": True}}  # type: ignore[dict-item]
        trace = client.post("/v1/completions", json=asked).json()["choices"][0]["diffusion"]["trace"]["trace"]
    told = {turn["turn"]: turn.get("mixtures") for turn in trace["turns"]}
    seen = 0
    for shot in shots:
        mixtures, want = shot.get("mixtures", {}), told[shot["turn"]]
        want = want or {"positions": [], "tokens": [], "weights": []}
        assert [int(at) for at in mixtures] == want["positions"]
        for (word, share), tokens, weights in zip(mixtures.values(), want["tokens"], want["weights"], strict=True):
            assert word == trace["words"][str(tokens[0])] and share == pytest.approx(weights[0], abs=1e-3)
            seen += 1
    assert seen
