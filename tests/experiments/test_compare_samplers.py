"""The comparison of samplers: its intervals, and a run over few items."""

from __future__ import annotations

import pytest
from harness import of_noise

from dllm import load
from dllm.compose.parts import choices
from dllm.tasks.mini import tasks as mini
from experiments.compare.samplers import Comparison, interval
from experiments.support.markdown import percent


def test_intervals() -> None:
    assert interval([1.0, 3.0], 1) == "2.0 ±2.0"
    assert percent([1.0] * 10) == "100 (72-100)"


@pytest.mark.parametrize("name", ["mini-llada"])
def test_every_sampler_has_its_line_and_freedave_loses_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mini, "SHORT_ANSWERS", mini.SHORT_ANSWERS[::6])  # an item of each takes 25 s
    comparison = Comparison(load(name), count=1, seed=5)
    comparison.run()
    lines = comparison.table().splitlines()
    causal = {"linear_spec"}  # for models with causal rows
    assert {words.partition(":")[0] for words in comparison.refused} == causal | of_noise()
    assert len(lines) == len(choices("sampler")) - len(of_noise()) + 4
    holds = dict(comparison.relations())
    assert holds["freedave decodes what static decodes"]
    assert holds["no item needs fewer forwards under freedave than its lossless minimum"]
