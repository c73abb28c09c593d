"""What a task's rows say of every forward, beside the same decode's trace."""

from __future__ import annotations

from typing import Any

import pytest

from dllm import Decoder, load
from dllm.parts import DecisionCount

PROMPTS = ["Latin square:\nA,B,C,D", 'Sort the list:\n["Kai", "Emma", "Hugo"]']


@pytest.mark.parametrize(
    ("cache", "blocks"), [("none", "fixed"), ("dual", "fixed"), ("elastic", "whole"), ("dkv", "fixed")]
)
def test_refreshes_are_those_of_the_trace(cache: str, blocks: str) -> None:
    counted: Any = DecisionCount()
    decoder = Decoder(load("mini-llada"), cache=cache, blocks=blocks, gen_length=32, batch_size=2)
    results = decoder(PROMPTS, trace=True, observe=counted)
    for number, result in enumerate(results):
        columns = counted.columns(number)
        turns = [record.refreshed for record, _ in result.traced().path()]
        layers = max(map(len, turns))
        wide = [[rows > 0 for rows in turn] if len(turn) == layers else [turn[0] > 0] * layers for turn in turns]
        expected = [sum(layer) for layer in zip(*wide, strict=True)]
        found = columns["refreshed_by_layer"]
        assert (found if len(found) == layers else found * layers) == expected
        assert columns["refreshed"] == pytest.approx(sum(expected) / layers, abs=1e-4)
        kept = cache != "none"  # without a cache nothing is refreshed
        assert 0 < columns["refreshed"] <= result.nfe if kept else columns["refreshed"] == 0
