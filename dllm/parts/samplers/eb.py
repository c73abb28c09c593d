"""Commit as many positions as an entropy budget allows (EB-Sampler, arXiv 2505.24857)."""

from __future__ import annotations

from dllm.common.errors import in_range
from dllm.common.ranking import argmax_mask, within_budget
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import PerRequest
from dllm.contract.readouts import Statistic
from dllm.contract.traits import SamplerTraits
from dllm.parts.samplers.base import Sampler


class EntropyBound(Sampler):
    """Commit the longest prefix of the open positions by entropy, H(1) <= H(2) <= ..., whose sum without its largest
    entry is at most ``gamma`` nats. That is always at least one position: its sum without itself is 0."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=False, ranks_by="entropy")
    per_request = ("gamma",)

    def __init__(self, gamma: PerRequest = 0.1) -> None:
        in_range("sampler.gamma", gamma, 0.0)
        self.gamma = gamma

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=Statistic.of("entropy")),)

    def step(self, view: View, state: State) -> Step:
        entropy = view.scores.statistic("entropy")
        accepted = within_budget(entropy, view.open, state["gamma"])
        return view.step(accepted | argmax_mask(-entropy, view.open), accepted=accepted)
