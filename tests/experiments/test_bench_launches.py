"""How many launches a turn has: the count that a GPU's turns are judged by where there is no GPU."""

from __future__ import annotations

import pytest

from experiments.bench.launches import LAYERS, count

MOST = 350  # of a compiled turn of an 8B model (cache=dual, sampler=confidence); 621 were measured on an H200


@pytest.mark.program  # 30 s: kernels are interpreted
def test_a_layer_launches_nine_operations_and_a_turn_few_beside_them() -> None:
    found = count("dual", 1)
    assert found.layer == 9, "norm, qkv, rotation, attention, o, norm, gate and up, silu, down"
    assert found.total <= 450 and found.total == LAYERS * 9 + found.outside


@pytest.mark.program  # a minute
def test_a_compiled_turn_has_half_the_launches_of_the_first_hour_on_a_gpu() -> None:
    assert count("dual", 1, compiled=True).total <= MOST
