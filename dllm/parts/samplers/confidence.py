"""Commit every position whose confidence reaches a threshold (Fast-dLLM, arXiv 2505.22618, threshold rule)."""

from __future__ import annotations

from dllm.common.errors import in_range
from dllm.common.ranking import argmax_mask
from dllm.contract import State, Step, View
from dllm.contract.canvas import PerRequest
from dllm.contract.traits import SamplerTraits
from dllm.parts.samplers.base import Sampler


class Confidence(Sampler):
    """Commit each open position whose confidence is at least ``threshold``, and always the most confident one."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=True, ranks_by="confidence")

    per_request = ("threshold",)

    def __init__(self, threshold: PerRequest = 0.9) -> None:
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        self.threshold = threshold

    def step(self, view: View, state: State) -> Step:
        confidence = view.scores.confidence
        accepted = view.open & (confidence >= state["threshold"][:, None])
        return view.step(accepted | argmax_mask(confidence, view.open), accepted=accepted)
