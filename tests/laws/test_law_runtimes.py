"""Law 11: a runtime changes no token and no count of acting forwards, however late the host reads.

Every sampler x cache x blocks x end-of-text policy that it accepts, the host reading 0, 1, 2 or 4 turns late, at
temperature 0 and above, against eager shapes: static, cudagraph through a recorder that replays on the CPU, and its
turns with compiled stages; compile on one model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
import torch
from harness import BLOCKS, MODELS, Combination, Shown, allowed, build, drawn, full, model, parts_of, requests, results
from law import law
from recording import FakeGraph, as_recorded

from dllm import UserError
from dllm.common import debug
from dllm.parts import (
    CompiledNetwork,
    CompiledStages,
    Graphs,
    Network,
    Parts,
    RecordedTurns,
    Rows,
    Runtime,
    Sampling,
    Turn,
    choices,
    run_plainly,
)

DEVICE = {"static": torch.device("cpu"), "compile": torch.device("cpu"), "cudagraph": torch.device("cuda")}
LAGS, HEATS = (0, 1, 2, 4), (0.0, 0.8)


@dataclass(frozen=True)
class Case(Shown):
    """One combination under a runtime whose host reads so many turns late, at a temperature."""

    runtime: str
    combination: Combination
    lag: int
    heat: float
    backend: str = ""  # of torch.compile, which compiles the stages of recorded turns ("": none)

    def accepted(self) -> bool:
        """Whether the parts take this runtime and temperature."""
        if not allowed(self.combination):
            return False
        parts, config = parts_of(self.combination), model(self.combination.model).config
        if not allowed(self.combination, Sampling(temperature=self.heat, tempered=parts.sampler.traits.tempered)):
            return False
        try:
            Runtime(self.runtime, self.lag).check(parts, config, DEVICE[self.runtime])
        except UserError:
            return False
        return True


def cases(runtime: str) -> Iterator[Case]:
    """Every case of a runtime that its parts accept, in the order of ``drawn``."""
    caches = [name for name in choices("cache") if build("cache", name).traits.bounded_shapes]
    models = MODELS[:1] if runtime == "compile" else MODELS
    groups = choices("sampler"), choices("blocks"), caches, choices("eos"), models, LAGS, HEATS
    for *names, lag, heat in drawn(*groups):
        case = Case(runtime, Combination(*names), lag, heat)
        if case.accepted():
            yield case


static_cases = partial(cases, "static")


def compiled_cases(backend: str) -> Iterator[Case]:
    """Those whose turns are recorded whole, on one model; the first of every day differ."""
    for case in cases("cudagraph"):
        if case.combination.model == MODELS[0] and records_turns(parts_of(case.combination)):
            yield replace(case, backend=backend)


def records_turns(parts: Parts) -> bool:
    """Whether whole turns are recorded, not forwards alone."""
    return not (parts.sampler.traits.syncs or parts.eos.traits.syncs)


def drafting() -> Iterator[Case]:
    """FreeDave with and without a cache."""
    for kv in ("none", "prefix"):
        yield Case("static", Combination("freedave", "fixed", kv, "none", MODELS[0]), 0, 0.0)


@cache
def network(runtime: str, name: str) -> Network | None:
    """The model as the runtime runs it, if it does not record whole turns; what it has made serves all cases."""
    if runtime == "static":
        return None
    if runtime == "cudagraph":
        return Graphs(model(name), lambda: FakeGraph([]))
    return CompiledNetwork(model(name), backend="eager")


def outcome(case: Case, eager: bool) -> list[tuple[list[int], int, list[int], int]]:
    """Of every row: its canvas, its acting forwards, the turn that fixed each position, the rows it asked for."""
    name, parts = case.combination.model, parts_of(case.combination)
    sampling = Sampling(temperature=case.heat, tempered=parts.sampler.traits.tempered)
    if eager:
        found = results(model(name), parts, requests(), sampling)
    elif case.backend:
        stages, taken = CompiledStages(case.backend), count()

        def take(*turn: Any) -> tuple[Rows, Turn]:  # one turn is compiled: each more shape takes seconds
            return as_recorded(stages if next(taken) == 2 else run_plainly, *turn)

        with patch.object(debug, "ON", False):  # its assertions ask, which breaks a graph
            found = results(model(name), parts, requests(), sampling, case.lag, take=take)
        assert stages.compiled, "a turn is compiled"
    elif case.runtime == "cudagraph" and records_turns(parts):
        take = RecordedTurns(model(name), lambda: FakeGraph([]))
        for _ in range(2):  # most shapes come back in the second decode
            found = results(model(name), parts, requests(), sampling, case.lag, take=take)
    else:
        found = results(model(name), parts, requests(), sampling, case.lag, network(case.runtime, name))
    return [(one.canvas, one.nfe, one.turns, one.query_tokens) for one in found]


@law(static_cases, daily=10, least=10000)
def test_static_turns_are_eager_ones(case: Case) -> None:
    assert outcome(case, eager=False) == outcome(case, eager=True)


@law(partial(cases, "cudagraph"), daily=4, least=10000)
def test_recorded_turns_are_eager_ones(case: Case) -> None:
    assert outcome(case, eager=False) == outcome(case, eager=True)


@law(partial(compiled_cases, "eager"), daily=1, least=3000)
def test_turns_that_torch_compile_reads_are_eager_ones(case: Case) -> None:
    """What it takes for constant, and for one tensor, is so."""
    assert outcome(case, eager=False) == outcome(case, eager=True)


@law(partial(compiled_cases, "inductor"), daily=0, least=3000)  # 20 s each
def test_turns_around_compiled_stages_are_eager_ones(case: Case) -> None:
    assert outcome(case, eager=False) == outcome(case, eager=True)


@law(partial(cases, "compile"), daily=0, least=3000)  # 5 s each; tests/runtime/test_runtimes.py compiles every day
def test_compiled_turns_are_eager_ones(case: Case) -> None:
    assert outcome(case, eager=False) == outcome(case, eager=True)


BOUNDED = [name for name in choices("cache") if build("cache", name).traits.bounded_shapes]


@pytest.mark.parametrize("name", BOUNDED)
def test_every_cache_that_bounds_its_shapes_bounds_them(name: str) -> None:
    """Each with the options of ``harness``, which widen what a forward computes, in every daily run: a bound that is
    too small drops rows of a forward."""
    tried = [
        Case("static", Combination(sampler, BLOCKS.get(name, "fixed"), name, "none", model), lag, 0.0)
        for model in MODELS
        for lag in (0, 2)
        for sampler in ("confidence", "order", "slowfast")
    ]
    accepted = [case for case in tried if case.accepted()]
    assert accepted, "no case says anything of the cache"
    for case in accepted if full() else accepted[:1]:
        assert outcome(case, eager=False) == outcome(case, eager=True)


BETWEEN = {  # rules whose blocks show mixtures or run in a pipeline, on models that they take
    "dmax": Combination("dmax", "fixed", "finished", "fill_after_block", "sdar_b4"),
    "remix": Combination("remix", "fixed", "prefix", "none", "tiny-llada"),
    "d2f": Combination("d2f", "pipelined", "finished", "none", "tiny-llada-d2f"),
}


def agrees(rule: str, runtime: str, lag: int = 0) -> None:
    case = Case(runtime, BETWEEN[rule], lag, 0.0)
    assert case.accepted()
    assert outcome(case, eager=False) == outcome(case, eager=True)


@pytest.mark.daily(2)
@pytest.mark.parametrize("runtime", ["static", "cudagraph"])
@pytest.mark.parametrize("rule", BETWEEN)
def test_rules_between_mask_and_token_run_in_fixed_shapes(rule: str, runtime: str) -> None:
    agrees(rule, runtime)


@pytest.mark.program  # seconds
@pytest.mark.parametrize("rule", BETWEEN)
def test_rules_between_mask_and_token_are_compiled(rule: str) -> None:
    agrees(rule, "compile")


@pytest.mark.program  # seconds
@pytest.mark.parametrize(("runtime", "lag"), [("static", 2), ("cudagraph", 1)])
def test_mixtures_of_a_late_host_are_those_of_a_prompt_one(runtime: str, lag: int) -> None:
    agrees("remix", runtime, lag)


@law(drafting, daily=2, least=2)
def test_drafts_in_static_turns_are_eager_ones(case: Case) -> None:
    """Several candidates in fixed shapes, which the other laws' daily samples may miss."""
    assert outcome(case, eager=False) == outcome(case, eager=True)
