"""No runtime changes a token in float32: tiny models under a seeded sample of all combinations, and the small trained
models on real prompts, each against eager on the same device."""

from __future__ import annotations

import random
from functools import cache
from itertools import islice

import harness
import pytest
import torch
from harness import parts_of, requests
from place import DEVICE, GPU
from test_law_runtimes import Case, cases
from under import RUNTIMES, model, on_any_device, way

from dllm import Decoder, load
from dllm.parts import COMPILED, RECORDED, Draw, Model, Runtime, Sampling
from dllm.tasks.mini import tasks

COUNT = {"static": 40, "cudagraph": 30, "compile": 4, "compile_cudagraph": 4} if GPU else dict.fromkeys(RUNTIMES, 2)
CACHES = ("none", "prefix", "dual", "window") if GPU else ("dual",)


def sample() -> list[Case]:
    """Cases of every runtime; those of compiled ones are those of ``compile``."""
    out = []
    for runtime in RUNTIMES:
        kind = "compile" if runtime in COMPILED else runtime
        found = (one for one in cases(kind) if runtime not in RECORDED or one.lag < 3)
        out += [Case(runtime, one.combination, one.lag, one.heat) for one in islice(found, COUNT[runtime])]
    return out


def outcome(case: Case, runtime: str, dtype: torch.dtype) -> list[tuple[list[int], int, list[int], int]]:
    """Of every row: its canvas, its acting forwards, the turn that fixed each position, the rows it asked for."""
    name, parts = case.combination.model, parts_of(case.combination)
    network, sampling = model(name, dtype), Sampling(temperature=case.heat, tempered=parts.sampler.traits.tempered)
    runs, take = way(runtime, network, parts)
    lag = None if runtime == "eager" else case.lag
    for _ in range(2 if runtime in RECORDED else 1):  # most shapes come back in the second decode
        found = harness.results(network, parts, requests(), sampling, lag, runs, take)
    return [(one.canvas, one.nfe, one.turns, one.query_tokens) for one in found]


@pytest.mark.parametrize("case", sample(), ids=str)
def test_a_runtime_changes_nothing(case: Case) -> None:
    found, expected = (outcome(case, name, torch.float32) for name in (case.runtime, "eager"))
    if found != expected:
        same = outcome(case, case.runtime, torch.float64) == outcome(case, "eager", torch.float64)
        pytest.fail(f"differs in float32; in float64 it {'agrees: rounding' if same else 'differs, too'}")


@cache
def trained(name: str) -> Model:
    return load(name, device=DEVICE.type, dtype="float32", pack=False)


@cache
def prompts(count: int) -> list[str]:
    given = Draw(random.Random(3), (3, 5))
    return [tasks.draw(task, given).prompt for task in count * ("sort", "reverse", "latin_square")]


@cache
def decoded(name: str, cache: str, runtime: str) -> list[list[int]]:
    blocks = "whole" if cache == "window" else "fixed"
    chosen = Runtime(runtime, 0 if runtime == "eager" else 1)
    with on_any_device():
        decoder = Decoder(trained(name), "confidence", blocks, cache, gen_length=32, batch_size=8, runtime=chosen)
        return [result.canvas for result in decoder(prompts(8 if GPU else 1))]


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", ["mini-llada", "mini-dream"])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_trained_models_answer_alike(runtime: str, name: str, cache: str) -> None:
    if runtime in COMPILED and cache in ("prefix", "window"):
        pytest.skip("compiles for a minute; a sample of all caches is above")
    if not GPU and runtime in RECORDED:
        pytest.skip("Decoder refuses to record on a CPU")
    assert decoded(name, cache, runtime) == decoded(name, cache, "eager")
