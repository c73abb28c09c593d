"""Recorded decodes of the published implementations, on the device in float32: all as they are, and a seeded sample
under every runtime that takes their parts.

A decode that differs in float32 and agrees in float64 differs by rounding: it is skipped, and the reason counted.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import DATA
from place import DEVICE, GPU
from replay import METHODS, decode, differences, parts_of, record_of, run_case
from replay_lengths import METHODS as LENGTHS
from replay_parts import CaseParts
from under import RUNTIMES, model, way

from dllm.parts import RECORDED, Runtime, UserError

SAMPLE = {"static": 40, "cudagraph": 30, "compile": 12, "compile_cudagraph": 12} if GPU else dict.fromkeys(RUNTIMES, 2)
PASSES = (
    "first_column",
    "full",
    "queries",
    "ranges",
    "schedule",
    "verify",
    "steps",
    "selected",
    "value_tokens",
    "kept_masks",
)
WHOLE_RUNS = ("exit_step", "static_nfe", "lossless")  # fields that need more than one decode


@dataclass(frozen=True)
class Golden:
    """A recorded decode."""

    method: str
    number: int
    runtime: str = "eager"

    def __str__(self) -> str:
        return f"{self.runtime}-{self.method}-{self.number}"


@cache
def recorded(method: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((DATA / "goldens" / f"{method}.json").read_text())
    return data


def goldens() -> list[Golden]:
    """Of the files, and of methods that are recorded on flatter models alone those in ``sharp``."""
    folder = Path(DATA / "goldens")
    plain, flat = ({file.stem for file in at.glob("*.json")} for at in (folder, folder / "sharp"))
    files = sorted([*plain, *(f"sharp/{name}" for name in flat - plain)])
    files = [name for name in files if recorded(name)["method"] in METHODS.keys() - LENGTHS.keys()]
    found = [Golden(name, number) for name in files for number in range(len(recorded(name)["cases"]))]
    return found if GPU else random.Random(1).sample(found, 6)


def accepted(golden: Golden) -> bool:
    """Whether the case's parts take the runtime, in one decode."""
    data = recorded(golden.method)
    case = data["cases"][golden.number]
    parts = parts_of(case, model(case["model"]), data)
    config, place = model(case["model"]).config, torch.device("cuda") if golden.runtime in RECORDED else DEVICE
    try:
        Runtime(golden.runtime).check(parts, config, place)
    except UserError:
        return False
    return not any(name in case for name in WHOLE_RUNS) and parts.turns is None and not asks(parts)


def asks(parts: CaseParts) -> bool:
    """Whether a part is made for the replay of one row, which may ask the device."""
    chosen = parts.sampler, parts.blocks, parts.cache, parts.eos
    own = any(type(part).__module__.startswith("replay") for part in chosen)
    return own or "kept" in vars(parts.cache)


def sampled() -> Iterator[Golden]:
    for runtime in RUNTIMES:
        every = [replace(one, runtime=runtime) for one in goldens()]
        random.Random(0).shuffle(every)
        yield from [one for one in every if accepted(one)][: SAMPLE[runtime]]


def different(golden: Golden, dtype: torch.dtype) -> list[str]:
    """Names of the fields in which the decode on the device differs. A recorded turn makes its passes while it is
    recorded, not when it is replayed: what is read off the passes is not compared there."""
    data = recorded(golden.method)
    case = data["cases"][golden.number]
    if golden.runtime in RECORDED:
        case = {name: value for name, value in case.items() if name not in PASSES}
    network = model(case["model"], dtype)
    if golden.runtime == "eager":
        return differences(case, run_case(case, network, data))
    parts = parts_of(case, network, data)
    record = record_of(case, parts, data["method"])
    runs = way(golden.runtime, network, parts)
    return differences(case, decode(network, case["prompt"], parts, record, (*runs, 0)))


@pytest.mark.parametrize("golden", [*goldens(), *sampled()], ids=str)
def test_a_recorded_decode_is_repeated(golden: Golden) -> None:
    found = different(golden, torch.float32)
    if found and not different(golden, torch.float64):
        pytest.skip("differs in float32 and agrees in float64: rounding")
    assert found == [], f"on {DEVICE}"
