"""A small network on a CPU decodes with one thread, unless somebody has said how many."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dllm import load
from dllm.parts import spare_threads
from tests.app.conftest import Run


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("told", "small", "threads"), [("2", 10**9, 2), (None, 1, 2), (None, 10**9, 1)])
def test_a_small_network_takes_one_thread(
    run: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch, told: str | None, small: int, threads: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if told is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    monkeypatch.setattr("dllm.app.runs.plan.SMALL_MODEL", small)
    assert run(f"model.path={tiny}", "prompt=w1", "gen_length=8", "name=one", bare=True).code == 0
    assert json.loads(Path("runs/one/environment.json").read_text())["threads"] == threads


def test_packed_weights_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """mini-llada has 2.3 M weights, of which fewer than 1 M are parameters once others are packed."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for small, threads in ((2_000_000, 2), (2_500_000, 1)):
        monkeypatch.setattr("dllm.app.runs.plan.SMALL_MODEL", small)
        spare_threads(load("mini-llada").transformer)
        assert torch.get_num_threads() == threads
