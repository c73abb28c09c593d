"""The laws of rollouts over every combination that gives some, on tiny trained models that draw at a temperature."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import torch
from harness import Combination, Shown, allowed, build, drawn, model, parts_of, requests
from law import law

from dllm.laws import rollout_claims
from dllm.parts import Sampling, Trial, UserError, choices

SCHEDULES = ("fixed", "whole", "growing", "ahead", "sliding")
NETWORKS = ("tiny-llada", "tiny-dream", "sdar_b4")
CACHES = ("none", "finished")  # whose scores are exact
FILTERS: tuple[tuple[float | None, int | None], ...] = ((None, None), (0.9, None), (None, 5))  # top_p, top_k


@dataclass(frozen=True)
class RolloutCase(Shown):
    """A combination, and how it draws."""

    parts: Combination
    top_p: float | None
    top_k: int | None
    wide: bool  # float64
    guidance: float

    @property
    def sampling(self) -> Sampling:
        cold = build("sampler", self.parts.sampler).traits.tokens != "proposed"
        if cold:
            return Sampling()
        return Sampling(temperature=0.8, top_p=self.top_p, top_k=self.top_k, guidance=self.guidance)


def rollout_cases() -> Iterator[RolloutCase]:
    """Every rule, schedule, policy and kind of model that take each other and such draws, in the order of LAWS_SEED."""
    groups = choices("sampler"), SCHEDULES, CACHES, choices("eos"), NETWORKS
    for *names, (top_p, top_k), wide, guidance in drawn(*groups, FILTERS, (True, False), (0.0, 0.5)):
        case = RolloutCase(Combination(*names), top_p, top_k, wide, guidance)
        if gives(case):
            yield case


@cache
def gives(case: RolloutCase) -> bool:
    if not allowed(case.parts):
        return False
    try:
        parts = parts_of(case.parts, case.sampling)
    except UserError:
        return False
    trial = Trial(model(case.parts.model), parts, (), case.sampling)
    return rollout_claims.gives_rollouts(trial)


@lru_cache(maxsize=2)
def trial_of(case: RolloutCase) -> Trial:
    network = model(case.parts.model, torch.float64 if case.wide else torch.float32)
    parts = parts_of(case.parts, case.sampling)
    return Trial(network, parts, tuple(requests()), parts.sampling.under(parts.sampler))


@law(rollout_cases, daily=2, least=500)
def test_a_rollout_is_scored_again(case: RolloutCase) -> None:
    rollout_claims.a_rollout_is_scored_again(trial_of(case))


@law(rollout_cases, daily=1, least=500)
def test_a_rollout_is_alone(case: RolloutCase) -> None:
    rollout_claims.a_rollout_is_alone(trial_of(case))


@law(rollout_cases, daily=2, least=500)
def test_slices_cover_every_draw(case: RolloutCase) -> None:
    rollout_claims.slices_cover_every_draw(trial_of(case))


@law(rollout_cases, daily=1, least=500)
def test_gradients_are_plain(case: RolloutCase) -> None:
    rollout_claims.gradients_are_plain(trial_of(replace(case, wide=True, guidance=0.0)))
