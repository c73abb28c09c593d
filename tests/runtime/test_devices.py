"""Every tensor is on the device of the data it meets: shown with GPUs that are not there (see ``fake_gpu``)."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import islice

import pytest
import torch
from device_cases import (
    LENGTHS,
    ONE,
    PROMPTS,
    Case,
    caches,
    decoded,
    endings,
    halves,
    made,
    on_a_gpu,
    on_gpus,
    parts,
    samplers,
    samplings,
    schedules,
    split_cases,
    together,
    wrappers,
)
from fake_gpu import GPU, FakeGPUs, device_of, parameter, placed
from fake_tensors import FakeTensors
from harness import forward_of, full, model

from dllm.parts import Canvas, Parts, Request, Sampling, choices, denoise, spread_over_devices
from dllm.parts import device_of as home_of
from tests.support.random_models import random_model

CASES = [*samplers(), *wrappers(), *schedules(), *caches(), *endings(), *samplings(), *together()]
# Known to copy in every turn. What is mended fails ``test_what_is_known_to_copy``, so that its line goes.
COPYING = {
    "parts/cache/calls.py:__call__": "rows that share a call become a tensor the first time that they do",
    "loop/rows.py:select": "the rows that stay, after some have finished",
    "parts/samplers/scout.py:propose": "the trees of drafts, which grow on the host",
}
by_case = pytest.mark.parametrize("case", CASES, ids=str)


def test_the_cases_name_every_part() -> None:
    names = {case.name for case in CASES}
    assert len(names) == len(CASES)
    for group in ("sampler", "blocks"):
        assert {f"{group}={name}" for name in choices(group)} <= names
    assert {f"eos={name}-dual" for name in choices("eos")} <= names
    assert {name for name in choices("cache") if any(case.cache == name for case in CASES)} == set(choices("cache"))


@pytest.mark.daily(40)
@by_case
def test_every_tensor_is_on_the_device_of_what_it_meets(case: Case) -> None:
    on_a_gpu(case)


@pytest.mark.daily(40)
@by_case
def test_a_turn_copies_nothing_to_the_gpu(case: Case) -> None:
    assert set(on_a_gpu(case).copies) <= set(COPYING)


@pytest.mark.parametrize("site", COPYING)
def test_what_is_known_to_copy(site: str) -> None:
    """Each of these stalls the stream, though not in every turn: mended, it fails here, and its line goes."""
    assert any(site in on_a_gpu(case).copies for case in CASES)


@pytest.mark.parametrize("name", ["sampler=confidence", "sampler=freedave", "cache=dual-tiny-llada", "guidance-dkv"])
def test_a_fake_gpu_decodes_what_the_cpu_does(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    with torch.inference_mode():
        expected = decoded(case)
        with FakeGPUs():
            found = decoded(case, on_gpus(parts(case)[1], split=False))
    assert [(one.canvas, one.turns, one.nfe) for one in found] == [(one.canvas, one.turns, one.nfe) for one in expected]


@pytest.mark.parametrize(
    ("kv", "kind", "split"),
    [("none", "tiny-dream", False), ("dual", "tiny-llada", True), ("prefix", "tiny-dream", True)][: 3 if full() else 2],
)
def test_static_turns_run_on_torchs_own_fake_tensors(
    kv: str, kind: str, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one GPU and on two. Behind the first turn no number is asked for; FakeTensorMode itself refuses mixtures."""
    monkeypatch.setattr("dllm.common.debug.ON", False)
    (sampler, blocks, cache, eos), name = parts(Case(kv, "credit", cache=kv, model=kind))
    network, mode = deepcopy(model(name)), FakeTensors()
    placement = halves(network) if split else ONE
    for place, weight in list(network.named_parameters()):
        module, _, leaf = place.rpartition(".")
        fake = mode.fake(weight, device_of(home_of(place, placement)))
        network.get_submodule(module)._parameters[leaf] = fake  # type: ignore[assignment]
    spread_over_devices(network, placement)
    batch = [Request.answer(prompt, length, 60) for prompt, length in zip(PROMPTS, LENGTHS, strict=True)]
    with mode, torch.inference_mode():
        canvas, forward = Canvas.of(batch, 0, GPU), forward_of(network, Parts(sampler, blocks, cache, eos), Sampling())
        running = denoise(canvas, forward, Parts(sampler, blocks, cache, eos), 4)
        first = next(running)
        assert first.candidates.tokens.device == GPU and first.view.scores.confidence.device == GPU
        asked = mode.asked
        for turn in islice(running, 2):
            assert turn.candidates.tokens.device == GPU
        assert mode.asked == asked


def two_gpus() -> list[Case]:
    """All, or every cache with what it is asked most, and a third of the others."""
    found = list(split_cases())
    first = {case.cache if isinstance(case.cache, str) else case: case for case in found[::-1]}.values()
    return [case for number, case in enumerate(found) if full() or case in first or number % 4 == 0]


@pytest.mark.daily(24)
@pytest.mark.parametrize("case", two_gpus(), ids=str)
def test_two_gpus_decode_what_one_device_does(case: Case) -> None:
    with torch.inference_mode():
        expected = decoded(case)
        with FakeGPUs() as mode:
            found = decoded(case, on_gpus(parts(case)[1], split=True))
    assert [(one.canvas, one.turns, one.nfe) for one in found] == [(one.canvas, one.turns, one.nfe) for one in expected]
    assert mode.moves


@pytest.mark.parametrize(
    "kv", [name for name in choices("cache") if name != "focus"] if full() else ["dual", "elastic", "finished", "none"]
)
def test_what_layers_share_is_moved_once_to_each_gpu(kv: str) -> None:
    """The rows and what goes with them, not by layer: eight layers make no more moves than two."""
    name = "sdar_b4" if kv == "finished" else "tiny-dream" if kv in ("dkv_pd", "dkv_prefill") else "tiny-llada"
    case = Case(f"moves-{kv}", made("sampler", "order", positions="left_to_right"), cache=kv, model=name, turns=4)
    case = replace(case, blocks="sliding") if kv == "sliding" else case
    moves = {}
    for layers in (2, 8):
        key = "n_layers" if name == "tiny-llada" else "num_hidden_layers"
        network = random_model({**model(name).config.published, key: layers})
        with torch.inference_mode(), FakeGPUs() as mode:
            decoded(case, placed(network, halves(network)))
        moves[layers] = len(mode.moves) / 4
    assert moves[8] <= moves[2] + 1 < 20, moves


def test_layers_in_the_hosts_memory_run_on_the_first_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate brings their weights, and nothing else is copied; the rows go to the second GPU and back."""
    case = Case("offload", cache="dual", model="tiny-llada")
    with torch.inference_mode():
        expected = decoded(case)
    monkeypatch.setattr(torch.nn.Parameter, "__new__", parameter)
    places = ["cuda:0", "cuda:1", "cpu", "cpu"]
    placement = {
        "embed": "cuda:0",
        **{f"layers.{layer}": place for layer, place in enumerate(places)},
        "norm": "cpu",
        "lm_head": "cpu",
    }
    with FakeGPUs() as mode:
        network = placed(model("tiny-llada"), placement)
        assert network.places is not None and network.places.offloaded
        assert network.head_weight is None, "its weights are not where they are used"
        with torch.inference_mode():
            found = decoded(case, network)
    assert [one.canvas for one in found] == [one.canvas for one in expected]
    copies = {copy for copy in mode.copies if not copy.endswith("set_module_tensor_to_device")}
    assert mode.moves and copies <= set(COPYING)
