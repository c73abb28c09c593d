"""``model.quantize=auto``: the fastest kind that fits, by clocks and memories that the tests say."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from dllm import UserError, load
from dllm.models import fastest
from dllm.parts import (
    AUTO_KIND,
    CHECKPOINTS,
    Footprint,
    Kinds,
    Residence,
    SettingWarning,
    read_model_config,
    settled_kinds,
)

CONFIG = read_model_config(CHECKPOINTS / "mini-llada")
CPU = Residence(torch.bfloat16, torch.device("cpu"))
# Seconds over 32 and 256 rows, by kind and whether rows are in eight bits.
EPYC = {
    ("bfloat16", False): (44.4, 333.0),
    ("int8", False): (47.8, 340.0),
    ("int8", True): (8.6, 38.0),
    ("int4", False): (16.7, 95.9),
    ("int4", True): (14.7, 50.0),
}
XEON = {("bfloat16", False): (1.4, 5.1), ("int8", False): (3.5, 7.2), ("int4", False): (5.9, 12.0)}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, object]:
    """Its ``times`` are those of the processor."""
    there = {"times": EPYC}

    def seconds(_config: object, numbers: int, kind: str, rounds: bool = False) -> list[float] | None:
        found = there["times"].get((kind, rounds))
        return None if found is None else [1.0 * numbers, *found]

    monkeypatch.setattr(fastest, "forward_seconds", seconds)
    return there


def gib_of(kind: str, head: str | None = None) -> float:
    return Footprint.of(CONFIG, kind, head).loading / 2**30


@pytest.mark.parametrize(
    ("kind", "head", "expected"),
    [
        ("bfloat16", None, Kinds("int8", None, "int8")),  # all fit: the fastest
        ("int8", None, Kinds("int8", None, "int8")),
        ("int8", "int8", Kinds("int8", "int8", "int8")),  # a head in bfloat16 does not fit
        ("int4", "int4", Kinds("int4", "int4", "int8")),
    ],
)
def test_the_fastest_that_fits_is_taken(
    clock: Mapping[str, object], kind: str, head: str | None, expected: Kinds
) -> None:
    budget = CPU._replace(memory_gib=gib_of(kind, head) + 1e-6)
    assert settled_kinds(CONFIG, Kinds(AUTO_KIND), budget) == expected


def test_what_the_processor_cannot_is_left_out_and_what_is_given_stays(clock: dict[str, object]) -> None:
    assert settled_kinds(CONFIG, Kinds(AUTO_KIND, "int8"), CPU) == Kinds("int8", "int8", "int8")
    assert settled_kinds(CONFIG, Kinds(AUTO_KIND), CPU._replace(pack=False)) == Kinds("int4")  # runtime=compile
    assert settled_kinds(CONFIG, Kinds(AUTO_KIND), CPU._replace(kernels="invariant")).activations == "int8"
    clock["times"] = XEON
    assert settled_kinds(CONFIG, Kinds(AUTO_KIND), CPU) == Kinds(None)
    clock["times"] = {**XEON, ("int8", True): (1.36, 5.0)}
    assert settled_kinds(CONFIG, Kinds(AUTO_KIND), CPU) == Kinds(None)  # 3 % are no reason to round
    clock["times"] = {**XEON, ("int8", True): (1.2, 4.0)}
    assert settled_kinds(CONFIG, Kinds(AUTO_KIND), CPU) == Kinds("int8", None, "int8")
    assert settled_kinds(CONFIG, Kinds("int4"), CPU) == Kinds("int4")  # what is asked for stays


def test_where_nothing_fits_the_least_is_told_in_bytes_by_kind(clock: Mapping[str, object]) -> None:
    with pytest.raises(UserError) as error:
        settled_kinds(CONFIG, Kinds(AUTO_KIND), CPU._replace(memory_gib=0.1))
    least = Footprint.of(CONFIG, "int4", "int4").loading
    assert f"int4, embedding and head in int4 takes least, {least:,} bytes while" in str(error.value)
    for kind in ("bfloat16", "int8", "int4"):
        assert f"{kind} {Footprint.of(CONFIG, kind).loading:,}" in str(error.value)
    enough = float(str(error.value).partition("Set model.memory_gib=")[2].partition(",")[0])
    assert settled_kinds(CONFIG, Kinds(AUTO_KIND), CPU._replace(memory_gib=enough)).quantize is not None


@pytest.mark.parametrize(
    ("asked", "place", "words"),
    [
        (Kinds(AUTO_KIND), {"device": torch.device("cuda")}, "measures a CPU, and the model is on cuda"),
        (Kinds(AUTO_KIND), {"tp": 2}, "model.tp=2: each rank would choose for itself"),
        (Kinds(AUTO_KIND), {"dtype": torch.float32}, "among bfloat16 and narrower kinds. Set model.dtype=bfloat16"),
        (Kinds(AUTO_KIND), {"memory_gib": -1.0}, "model.memory_gib=-1 must be above 0"),
        (Kinds(AUTO_KIND, "int3"), {}, "quantize_head='int3' must be"),
        (Kinds("int8"), {"memory_gib": 3.0}, "model.memory_gib=3 is for model.quantize=auto, and it is int8. Drop it"),
    ],
)
def test_mistakes_are_refused(clock: Mapping[str, object], asked: Kinds, place: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        settled_kinds(CONFIG, asked, CPU._replace(**place))


def test_a_model_is_loaded_in_the_kind_that_is_told(clock: dict[str, object]) -> None:
    clock["times"] = {("bfloat16", False): (2.0, 9.0), ("int8", False): (1.0, 5.0), ("int4", False): (3.0, 9.0)}
    with pytest.warns(SettingWarning, match="model.quantize=auto takes int8: the fastest here of what fits"):
        model = load("mini-llada", dtype="bfloat16", quantize="auto")
    assert (model.quantize, model.activations) == ("int8", None)
    with pytest.raises(UserError, match="trainable=True: weights in auto cannot learn"):
        load("mini-llada", dtype="bfloat16", quantize="auto", trainable=True)
