"""A text that ends a row ends that row alone, in a batch as by itself."""

from __future__ import annotations

from typing import Any

from dllm import Decoder, load, part

PROMPTS = ['Copy the list:\n["Kai", "Emma", "Hugo"]', 'Copy the list:\n["Zoe", "Ida", "Tim"]']


def test_a_row_that_stops_does_so_beside_one_that_does_not() -> None:
    model = load("mini-llada")
    blocks = part("blocks", "fixed", block_length=4)
    parts: dict[str, Any] = {"sampler": "static", "blocks": blocks, "eos": "none", "gen_length": 24, "stop": ["Emma"]}
    alone = [Decoder(model, **parts)(prompt)[0] for prompt in PROMPTS]
    together = Decoder(model, **parts, batch_size=2)(PROMPTS)
    assert [result.stop_reason for result in together] == ["stop_string", "eos"]
    assert [(result.text, result.nfe) for result in together] == [(result.text, result.nfe) for result in alone]
    assert together[0].nfe < together[1].nfe
