"""cache=focus behind the server: mixed requests get under load what they get alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dllm import load
from tests.serve.live import alone_and_under_load, live
from tests.serve.load import reply_of
from tests.support.tiny import MODELS, make_tiny


def drawn(dice: random.Random) -> dict[str, Any]:
    """Most under focus, in prompts and answers of any length; some under other caches, some that are refused."""
    words = " ".join(f"w{dice.randint(2, 59)}" for _ in range(dice.randint(1, 40)))
    body: dict[str, Any] = {"prompt": words, "seed": dice.randint(0, 9), "max_tokens": dice.choice([8, 13, 24, 30])}
    cache: Any = {"name": "focus", "alpha": dice.choice([1.0, 1.5, 3.0, None])}
    if dice.random() < 0.3:
        cache = dice.choice(["focus", "finished", "none"])
    chosen: dict[str, Any] = {"cache": cache, "sampler": {"name": "confidence", "threshold": dice.choice([0.5, 0.9])}}
    chosen |= {"blocks": "fixed", "block_length": dice.choice([4, 4, 8])}
    if dice.random() < 0.1:
        chosen["sampler"] = "static"
    if dice.random() < 0.3:
        body["temperature"] = 0.7
    if dice.random() < 0.2:
        body["stop"] = [f"w{dice.randint(2, 59)}"]
    return {**body, "diffusion": chosen}


@pytest.mark.program
@pytest.mark.parametrize("requests", [100])
def test_mixed_requests_get_under_load_what_they_get_alone(requests: int, tmp_path: Path) -> None:
    dice = random.Random(5)
    bodies = [drawn(dice) for _ in range(requests)]
    model = load(make_tiny(tmp_path / "tiny", MODELS / "tiny-diffcoder"), dtype="float32")
    with live(model, timeout=600.0) as server:
        alone = alone_and_under_load(server, bodies, reply_of)
    refused = [body for body, reply in zip(bodies, alone, strict=True) if reply[0][1] == "refused"]
    assert 0 < len(refused) < requests // 4
