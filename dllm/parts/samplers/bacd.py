"""Commit what reaches the mean confidence of the block's earlier commits (BACD of TDAR, arXiv 2602.09555)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dllm.common.errors import Refusal, in_choices, in_range
from dllm.common.ranking import argmax_mask
from dllm.contract import State, Step, View
from dllm.contract.canvas import Canvas, PerRequest
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.parts.samplers.base import Sampler


class BACD(Sampler):
    """Commit what reaches the mean confidence of the block's commits so far, clamped to [``lower``, ``upper``]. On a
    block's first turn the threshold is the largest confidence, clamped in the same way. If no position reaches it, the
    best is committed.

    history: ``block`` (reset at every block, as published) or ``sequence`` (an ablation of ours).
    """

    traits = SamplerTraits(stateless=False, deterministic=True, by_confidence=True)
    per_request = ("lower", "upper")

    def __init__(self, lower: PerRequest = 0.6, upper: PerRequest = 0.9, history: str = "block") -> None:
        in_range("sampler.lower", lower, 0.0, 1.0)
        in_range("sampler.upper", upper, 0.0, 1.0)
        if (torch.as_tensor(lower) > torch.as_tensor(upper)).any():
            raise Refusal("{sampler.lower} must not exceed {sampler.upper}.", [lower, upper])
        in_choices("sampler.history", history, ("block", "sequence"))
        self.lower, self.upper, self.history = lower, upper, history
        self.traits = self.traits.but(beyond_block=history == "sequence")

    @property
    def per_block(self) -> Mapping[str, float]:
        return {"sum": 0, "count": 0} if self.history == "block" else {}

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        zero = torch.zeros_like(canvas.start)
        return super().start(canvas, blocks) | {"sum": zero.double(), "count": zero}

    def step(self, view: View, state: State) -> Step:
        confidence = view.scores.confidence
        total, count = state["sum"], state["count"]
        highest = confidence.masked_fill(~view.open, 0.0).amax(1)
        bar = torch.where(count > 0, total / count.clamp(min=1), highest)
        bar = torch.minimum(torch.maximum(bar, state["lower"]), state["upper"])
        accepted = view.open & (confidence >= bar[:, None])
        commit = accepted | (argmax_mask(confidence, view.open) & ~accepted.any(1, keepdim=True))
        total = total + (confidence * commit).sum(1)
        changed = {"sum": total, "count": count + commit.sum(1)}
        return view.step(commit, accepted=accepted, state=changed)
