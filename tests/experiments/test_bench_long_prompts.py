"""What the page on long prompts says of caches: figures against closed forms."""

from __future__ import annotations

import pytest

from dllm.parts import FULL
from experiments.bench.long_prompts import ANSWER, CASES, LLADA, model_of, power, taken


def test_flops_and_what_is_kept_are_those_of_llada() -> None:
    model, length = model_of("tiny", FULL), 96 + ANSWER
    none, dual, sparse = (taken(model, CASES[name], 96) for name in ("none", "dual", "sparse_dllm"))
    c = LLADA
    by_row = c.layers * (8 * c.width**2 + 6 * c.width * c.mlp_width)
    by_pair = c.layers * 4 * c.width
    head = 2 * c.width * c.vocab * ANSWER
    assert none.flops[0] * 1e12 == pytest.approx(length * by_row + length**2 * by_pair + head)
    assert dual.flops[1] * 1e12 == pytest.approx(ANSWER * by_row + ANSWER * length * by_pair + head, rel=0.2)
    assert none.kept == 0 and dual.kept * 2**20 == 2 * 2 * (length + 1) * c.width  # a column for padding
    assert sparse.kept * 2**20 == 2 * 2 * (96 // 2 + ANSWER + 1) * c.width


def test_a_power_is_fitted() -> None:
    assert power([1, 2, 4], [3, 12, 48]) == "L^2.00" and power([1, 2], [0, 0]) == ""
