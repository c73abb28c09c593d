"""How many launches a turn has: the count that a GPU's turns are judged by where there is no GPU."""

from __future__ import annotations

import pytest

from experiments.bench.launches import count

PLAIN, COMPILED = 430, 350  # launches of a turn of 32 layers (cache=dual, sampler=confidence); an H200 had 621


@pytest.mark.program  # 60 s: kernels are interpreted, and stages compiled
def test_a_layer_launches_ten_operations_at_most_and_a_turn_few_beside_them() -> None:
    found = count("dual")
    assert 9 <= found.layer <= 10, "norm, qkv, rotation, attention, o, norm, gate and up, silu, down"
    plain, compiled = found.totals()
    assert plain <= PLAIN and compiled <= COMPILED
