"""Prompts that begin alike, behind the server: what requests share changes no reply, under load and after evictions."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dllm import load
from dllm.parts import Limits, Model, column_bytes
from tests.serve.live import Live, alone_and_under_load, live
from tests.serve.load import reply_of
from tests.support.tiny import MODELS, make_tiny

BLOCK = 4  # columns


def drawn(dice: random.Random, beginnings: list[list[str]]) -> dict[str, Any]:
    """A prompt that begins as one of ``beginnings``, which end with a block, and goes on with one to nine tokens, the
    first two from a choice of two: many part inside a block."""
    words = [*dice.choice(beginnings), *dice.choice((["w3", "w9"], ["w3", "w4"]))]
    words += [f"w{dice.randint(2, 59)}" for _ in range(dice.randint(0, 7))]
    body: dict[str, Any] = {
        "prompt": " ".join(words),
        "seed": dice.randint(0, 9),
        "max_tokens": dice.choice([5, 9, 16]),
    }
    if dice.random() < 0.3:
        body["temperature"] = 0.7
    if dice.random() < 0.2:
        body["cache_salt"] = dice.choice(["one", "other"])
    chosen = {"cache": "finished", "blocks": "fixed", "block_length": BLOCK}
    return {**body, "diffusion": {**chosen, "sampler": {"name": "confidence", "threshold": 0.7}}}


def metric(server: Live, name: str) -> float:
    with server.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"dllm_{name} "))


def replies(model: Model, bodies: list[dict[str, Any]], limits: Limits) -> tuple[list[list[Any]], float, float]:
    """Alone on a cold store, and all at once on a warm one; tokens that were known, and pages that had to go."""
    with live(model, limits=limits, timeout=600.0) as server:
        found = alone_and_under_load(server, bodies, reply_of)
        return found, metric(server, "prompt_tokens_cached_total"), metric(server, "prefix_pages_evicted_total")


@pytest.mark.program
@pytest.mark.parametrize("count", [40])
def test_what_requests_share_changes_no_reply(count: int, tmp_path: Path) -> None:
    dice = random.Random(7)
    beginnings = [[f"w{dice.randint(2, 59)}" for _ in range(BLOCK * blocks)] for blocks in (2, 5, 9, 16)]
    bodies = [drawn(dice, beginnings) for _ in range(count)]
    model = load(make_tiny(tmp_path / "tiny", MODELS / "tiny-diffcoder"), dtype="float32")
    plain, known, _ = replies(model, bodies, Limits(prefix_gib=0))
    assert known == 0 and all(reason != "refused" for reply in plain for _, reason, _ in reply)
    shared, known, evicted = replies(model, bodies, Limits(prefill_chunk=16))
    assert shared == plain and known > 40 * count and evicted == 0
    scarce = 24 * column_bytes(model) / 2**30  # columns, fewer than the longest prompt has
    shared, known, evicted = replies(model, bodies, Limits(prefix_gib=scarce))
    assert shared == plain and known > 0 and evicted > count


def test_a_reply_says_what_was_known(tmp_path: Path) -> None:
    """Cold, warm, a prompt that parts inside the second block, one that is computed in chunks, and another tenant."""
    model = load(make_tiny(tmp_path / "tiny", MODELS / "tiny-diffcoder"), dtype="float32")
    body = drawn(random.Random(0), [["w5"] * 4]) | {"temperature": 0}
    asked: list[tuple[str, dict[str, str]]] = [
        ("w3 w9 w7 w7 w8", {}),
        ("w3 w9 w7 w7 w8", {}),
        ("w3 w9 w6 w6 w8", {}),
        ("w3 w9 w7 w7 w8 w2 w4 w6 w8 w3", {}),
        ("w3 w9 w7 w7 w8", {"cache_salt": "x"}),
    ]
    known = []
    with live(model, limits=Limits(prefill_chunk=12)) as server, server.client() as client:
        for end, more in asked:
            told = client.post("/v1/completions", json={**body, "prompt": f"w5 w5 w5 w5 {end}", **more}).json()
            known.append(told["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert known == [0, 8, 4, 8, 0]
