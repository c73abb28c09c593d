"""Recorded decodes with every kernel on, in the interpreter: the same tokens, turn by turn, as the torch path.

Three cases of every cache, those with the fewest rows to compute: two of the commoner model and one of the other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dllm.kernels import rope_scatter, row_statistics
from dllm.kernels.jit import Kernel, Shape
from tests.replay import MODELS, differences, model_of, run_case

FOLDER = Path(__file__).parents[1] / "data" / "goldens"
METHODS = ("llada_generate", "fastdllm_prefix", "fastdllm_dual", "dkv_decode", "dkv_greedy", "elastic",
           "window_diffusion", "creditdecoding")  # fmt: skip
UNCACHED = ("llada_generate", "creditdecoding")


def rows(case: dict[str, Any]) -> int:
    return sum(case["forward_tokens"])


def smallest(method: str) -> list[tuple[str, int]]:
    cases = json.loads((FOLDER / f"{method}.json").read_text())["cases"]
    order = sorted(range(len(cases)), key=lambda number: rows(cases[number]))
    other = next((number for number in order if cases[number]["model"] != cases[order[0]]["model"]), order[0])
    return [(method, number) for number in list(dict.fromkeys([order[0], other, *order]))[:3]]


@pytest.fixture(autouse=True)
def wide_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes milliseconds for a program, whatever its size; shipped tiles have their own tests."""
    monkeypatch.setattr(rope_scatter, "ROWS", 2048)
    monkeypatch.setattr(row_statistics, "MERGE", Shape({"ROWS": 64}))


@pytest.mark.parametrize(("method", "number"), [case for method in METHODS for case in smallest(method)])
def test_a_recorded_decode_with_every_kernel_on(method: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, launched = json.loads((FOLDER / f"{method}.json").read_text()), set()
    case, launch = data["cases"][number], Kernel._launch

    def counted(kernel: Kernel, *arguments: Any, **options: Any) -> None:
        launched.add(kernel.function.__name__)
        launch(kernel, *arguments, **options)

    monkeypatch.setattr(Kernel, "_launch", counted)
    model = model_of(MODELS / case["model"])
    model.use_kernels(True)
    try:
        assert differences(case, run_case(method, case, model, data.get("filters", {}))) == []
    finally:
        model.use_kernels(False)
    if method == "elastic":
        assert "_received" in launched
    assert {"_add_norm", "_head", "_merge"} <= launched
    assert ("_rope_scatter" in launched) == (method not in UNCACHED)
    assert ({"_credit", "_slot_logits"} <= launched) == (method == "creditdecoding")
