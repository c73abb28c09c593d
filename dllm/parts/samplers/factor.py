"""Commit the longest prefix of the ranking that a bound by rank allows (Fast-dLLM, arXiv 2505.22618, factor rule)."""

from __future__ import annotations

import torch

from dllm.common.errors import in_range
from dllm.common.ranking import rank
from dllm.contract import State, Step, View
from dllm.contract.canvas import PerRequest
from dllm.contract.traits import SamplerTraits
from dllm.parts.samplers.base import Sampler


class Factor(Sampler):
    """Commit, by confidence c(1) >= c(2) >= ..., while (n + 1) (1 - c(n)) <= ``factor``, and
    always the first.

    commit_last: if only the very last rank fails, commit it too (the published code does, the paper does not).
    """

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=True, ranks_by="confidence")

    per_request = ("factor",)

    def __init__(self, factor: PerRequest = 1.0, commit_last: bool = True) -> None:
        in_range("sampler.factor", factor, 0.0)
        self.factor, self.commit_last = factor, commit_last

    def step(self, view: View, state: State) -> Step:
        ranked, place = rank(view.scores.confidence, view.open)
        number = torch.arange(1, ranked.shape[1] + 1, device=ranked.device)
        passes = ranked >= 1 - state["factor"][:, None] / (number + 1)
        passed = (passes & (ranked > -torch.inf)).cumprod(1).sum(1)
        masks, count = view.open.sum(1), passed.clamp(min=1)
        if self.commit_last:
            count = torch.where(count >= masks - 1, masks, count)
        return view.step(view.open & (place < count[:, None]), accepted=view.open & (place < passed[:, None]))
