"""How many launches a turn has: the count that a GPU's turns are judged by where there is no GPU."""

from __future__ import annotations

import pytest

from experiments.bench.launches import LAYERS, count

MOST = 470  # of a plain turn of 32 layers (cache=dual, sampler=confidence); 621 were measured on an H200


@pytest.mark.program  # 30 s: kernels are interpreted
def test_a_layer_launches_ten_operations_at_most_and_a_turn_few_beside_them() -> None:
    found = count("dual", 1)
    assert 9 <= found.layer <= 10, "norm, qkv, rotation, attention, o, norm, gate and up, silu, down"
    assert found.total == LAYERS * found.layer + found.outside <= MOST
