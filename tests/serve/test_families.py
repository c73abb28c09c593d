"""The families of 2026 behind the server: a chat, and each with its own cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from dllm import load
from tests.serve.conftest import Place
from tests.support.family_folders import FAMILIES, FULL, make_family
from tests.support.harness import full

SERVED = FAMILIES if full() else ("a2d", "fastdllm_v2", "nemotron")


@pytest.mark.parametrize("name", SERVED)
def test_a_family_is_served(name: str, tmp_path: Path) -> None:
    place = Place(load(make_family(name, tmp_path / name)))
    try:
        for sampler in ("confidence", "static", "eb"):
            answers = []
            for cache in ("none", "dual" if name in FULL else "finished"):
                chosen = {"sampler": sampler, "cache": cache, "block_length": 8}
                reply = place.ask(diffusion=chosen, max_tokens=16)
                assert reply.status_code == 200, reply.text
                answers.append(reply.json()["choices"][0]["message"]["content"])
            assert name in FULL or answers[0] == answers[1]
    finally:
        place.close()


def test_linear_speculation_is_served(tmp_path: Path) -> None:
    """Asked for by a request, it gives one text whatever cuts its windows, and refuses chance."""
    place = Place(load(make_family("nemotron", tmp_path / "nemotron")))
    try:
        chosen = {"sampler": "linear_spec", "cache": "linear_spec", "blocks": "sliding"}
        reply = place.ask(diffusion=chosen, max_tokens=12)
        assert reply.status_code == 200, reply.text
        again = place.ask(diffusion={**chosen, "blocks": "fixed", "block_length": 4}, max_tokens=12)
        assert again.json()["choices"][0]["message"] == reply.json()["choices"][0]["message"]
        hot = place.ask(diffusion=chosen, max_tokens=12, temperature=0.7)
        assert hot.status_code == 400 and "must not be random" in hot.text
    finally:
        place.close()
