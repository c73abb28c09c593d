"""Recorded decodes with every kernel on, in the interpreter: the same tokens, turn by turn, as the torch path.

Three cases of every cache, those with the fewest rows to compute: two of the commoner model and one of the other.
``make test`` takes half of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from law import law

from dllm.kernels import rope_scatter, row_statistics
from dllm.parts import Kernel, LaunchConfig
from tests.replay import MODELS, differences, model_of, run_case

FOLDER = Path(__file__).parents[1] / "data" / "goldens"
METHODS = (
    "llada_generate",
    "fastdllm_prefix",
    "fastdllm_dual",
    "dkv_decode",
    "dkv_greedy",
    "elastic",
    "window_diffusion",
    "creditdecoding",
)


def rows(case: dict[str, Any]) -> int:
    return sum(case["forward_tokens"])


def smallest(method: str) -> list[tuple[str, int]]:
    cases = json.loads((FOLDER / f"{method}.json").read_text())["cases"]
    order = sorted(range(len(cases)), key=lambda number: rows(cases[number]))
    other = next((number for number in order if cases[number]["model"] != cases[order[0]]["model"]), order[0])
    return [(method, number) for number in list(dict.fromkeys([order[0], other, *order]))[:3]]


@contextmanager
def launches() -> Iterator[set[str]]:
    """Names of the kernels launched. In wide tiles: the interpreter takes milliseconds for a program, whatever its
    size, and shipped tiles have their own tests."""
    launched, launch = set(), Kernel._launch

    def counted(kernel: Kernel, *arguments: Any, **options: Any) -> None:
        launched.add(kernel.function.__name__)
        launch(kernel, *arguments, **options)

    heads = patch.object(rope_scatter, "HEADS_PER_PROGRAM", 2048)
    rows = patch.object(row_statistics, "_FINISH", LaunchConfig({"ROWS": 64}))
    with heads, rows, patch.object(Kernel, "_launch", counted):
        yield launched


@dataclass(frozen=True)
class Recorded:
    """A case of a golden file."""

    method: str
    number: int

    def __str__(self) -> str:
        return f"{self.method}-{self.number}"


def recorded() -> Iterator[Recorded]:
    """The first of every method, then the others."""
    return (Recorded(*cases) for number in range(3) for cases in (smallest(method)[number] for method in METHODS))


@law(recorded, daily=2, least=24)
def test_a_recorded_decode_with_every_kernel_on(golden: Recorded) -> None:
    method, data = golden.method, json.loads((FOLDER / f"{golden.method}.json").read_text())
    case = data["cases"][golden.number]
    model = model_of(MODELS / case["model"])
    model.use_kernels(True)
    try:
        with launches() as launched:
            assert differences(case, run_case(case, model, data)) == []
    finally:
        model.use_kernels(False)
    assert {"_add_norm", "_head", "_finish", "_rope_scatter"} <= launched
    by_heads = method == "elastic" and case["params"]["similarity"] == "heads"
    assert ({"_scores", "_drift_sums"} <= launched) == by_heads
    assert ({"_credit", "_slot_logits"} <= launched) == (method == "creditdecoding")
