"""How many launches a turn has: the count that a GPU's turns are judged by where there is no GPU."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from dllm.parts import choices
from experiments.bench import launches
from experiments.bench.launches import TINY, WARM, WORK, count, main
from experiments.bench.step import decode, named, random_model

PLAIN, COMPILED = 430, 350  # launches of a turn of 32 layers (cache=dual, sampler=confidence); an H200 had 621


@pytest.mark.program  # 60 s: kernels are interpreted, and stages compiled
def test_a_layer_launches_ten_operations_at_most_and_a_turn_few_beside_them() -> None:
    found = count("dual")
    assert 9 <= found.layer <= 10, "norm, qkv, rotation, attention, o, norm, gate and up, silu, down"
    plain, compiled = found.totals()
    assert plain <= PLAIN and compiled <= COMPILED


def test_every_cache_of_the_table_decodes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its turns run as they are, without counting: kernels in an interpreter would take a quarter of an hour."""

    def turns(cache: str, lag: int | None, layers: int, compiled: bool) -> float:
        model = random_model(TINY, torch.device("cpu"), torch.float32)
        running = decode(model, cache, WORK, lag, None, named("sampler", "confidence"))
        return float(len(list(islice(running, WARM))) * layers)

    monkeypatch.setattr(launches, "of_turns", turns)
    assert main([]) == 0
    rows = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines()[2:]]
    assert sorted({*rows, *launches.LEFT_OUT}) == sorted(choices("cache"))
