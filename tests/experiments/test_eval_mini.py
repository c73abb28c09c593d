"""The evaluation of the mini models, and what they promise: careful decoding works where reckless decoding fails."""

from __future__ import annotations

import pytest

from dllm import Decoder, load
from dllm.samplers.static import Static
from dllm.tasks.parallelbench import mini
from experiments.eval_mini import accuracy, table, wilson


@pytest.mark.parametrize("right, low, high", [(0, 0.0, 0.0370), (50, 0.4038, 0.5962), (100, 0.9630, 1.0)])
def test_wilson_interval(right: int, low: float, high: float) -> None:
    assert wilson(right, 100) == pytest.approx((low, high), abs=1e-4)


def test_table_ends_with_the_mean_over_tasks() -> None:
    lines = table({"copy": [10.0, 10, 10, 10, 5], "sort": [5.0, 0, 0, 0, 0]}, 10).splitlines()
    assert lines[2].startswith("| copy | 100 (72-100) |")
    assert lines[-1] == "| mean | 75 | 50 | 50 | 50 | 25 |"


@pytest.mark.parametrize("name", ["mini-llada", "mini-dream"])
def test_shipped_models_shuffle_only_when_decoded_carefully(name: str) -> None:
    model, samples = load(name), mini.generate("shuffle", 11, 24)
    careful, reckless = (
        accuracy(Decoder(model, Static(steps=steps), gen_length=32, batch_size=24), samples) for steps in (32, 1)
    )
    assert careful >= 18 and reckless <= 8


@pytest.mark.parametrize("name", ["mini-llada", "mini-dream"])
def test_shipped_models_copy_at_any_speed(name: str) -> None:
    model, samples = load(name), mini.generate("copy", 11, 24)
    for steps in (32, 4, 1):
        assert accuracy(Decoder(model, Static(steps=steps), gen_length=32, batch_size=24), samples) >= 21
