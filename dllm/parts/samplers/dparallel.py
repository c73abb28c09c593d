"""Commit every position whose entropy is at most a threshold (dParallel, arXiv 2509.26488)."""

from __future__ import annotations

from dllm.common.errors import in_range
from dllm.common.ranking import argmax_mask
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import PerRequest
from dllm.contract.readouts import Statistic
from dllm.contract.traits import SamplerTraits
from dllm.parts.samplers.base import Sampler


class DParallel(Sampler):
    """Commit each open position of at most ``threshold`` nats of entropy, and always the one of least entropy. The rule
    works with any model, and gains most with one distilled for it."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=False, ranks_by="entropy")
    per_request = ("threshold",)

    def __init__(self, threshold: PerRequest = 0.5) -> None:
        in_range("sampler.threshold", threshold, 0.0)
        self.threshold = threshold

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=Statistic.of("entropy")),)

    def step(self, view: View, state: State) -> Step:
        entropy = view.scores.statistic("entropy")
        accepted = view.open & (entropy <= state["threshold"][:, None])
        return view.step(accepted | argmax_mask(-entropy, view.open), accepted=accepted)
