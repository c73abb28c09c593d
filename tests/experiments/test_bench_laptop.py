"""A model on a CPU: the table of a tiny one with random weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.bench.laptop import rows, tiny_a2d


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_every_way_is_timed(weights: str) -> None:
    config = replace(tiny_a2d(), width=32, layers=1, heads=2, kv_heads=1, head_dim=16, mlp_width=32, vocab=500,
                     mask_id=499, eos_id=498, pad_id=498, rotary_dim=16)  # fmt: skip
    found = rows(config, weights, 5, 8)
    assert [row[:3] for row in found] == [
        [weights, "full", "none"], [weights, "full", "dual"], [weights, "answer-blocks", "finished"],
    ]  # fmt: skip
    assert all(float(cell) >= 0 for row in found for cell in row[3:6]) and all(float(row[6]) > 0 for row in found)
