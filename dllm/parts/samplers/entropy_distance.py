"""Commit what is certain and near the known text: entropy plus distance (WeDLM, arXiv 2512.22737)."""

from __future__ import annotations

from dllm.common.errors import in_range
from dllm.common.ranking import argmax_mask
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import PerRequest
from dllm.contract.readouts import Statistic
from dllm.contract.traits import SamplerTraits
from dllm.parts.samplers.base import Sampler


class EntropyDistance(Sampler):
    """Commit each open position that costs less than ``threshold``, and always the cheapest. The cost is the entropy in
    nats plus ``penalty`` for every column after the leftmost open one. A position of no entropy waits until it is
    within threshold / penalty columns. threshold 0: one position per forward."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=False)
    per_request = ("threshold", "penalty")

    def __init__(self, threshold: PerRequest = 0.4, penalty: PerRequest = 0.02) -> None:
        in_range("sampler.threshold", threshold, 0.0, advice="0 is one token per forward.")
        in_range("sampler.penalty", penalty, 0.0, advice="0 is a threshold of entropy alone.")
        self.threshold, self.penalty = threshold, penalty

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=Statistic.of("entropy")),)

    def step(self, view: View, state: State) -> Step:
        leftmost = view.open.long().argmax(1, keepdim=True)
        cost = view.scores.statistic("entropy") + state["penalty"][:, None] * (view.canvas.columns - leftmost)
        accepted = view.open & (cost < state["threshold"][:, None])
        return view.step(accepted | argmax_mask(-cost, view.open), accepted=accepted)
