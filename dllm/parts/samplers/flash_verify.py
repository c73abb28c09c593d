"""Commit what is sure, draft what is next, and keep what a second forward confirms (Flash-dLLM, arXiv 2609.26796).

The rule is that of VILA-Lab/Flash-dLLM@7437a55: llada/generate.py (generate_with_Flash_dLLM, verify=True).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.errors import Set, in_range
from dllm.common.ranking import argmax_mask, rank
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas, PerRequest
from dllm.contract.clash import UNGUIDED, USE_CONFIDENCE, Clash
from dllm.contract.readouts import Statistic
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.parts.samplers.base import Sampler


class FlashVerify(Sampler):
    """Commit each open position whose confidence is at least ``threshold``, and always the most confident one. The
    others are drafted, the most confident first: as many as the cache lays into the next forward. There a draft's mask
    sees the drafts before it. The longest run of drafts is committed whose probabilities there have a product of
    at least ``gamma``; it may be empty. Nothing is drafted that comes last by ``sampling.eos_last``.
    """

    traits = SamplerTraits(stateless=False, deterministic=True, by_confidence=True, verifies="beside")
    per_request = ("threshold", "gamma")
    clashes = (
        Clash(
            lambda c: c.model.prediction_shift,
            "{sampler} scores a draft at its own position, but this model predicts it from the one before (Dream).",
            [USE_CONFIDENCE & Set("cache", "flash_dllm")],
        ),
        Clash(
            lambda c: c.sampling.guidance,
            "{sampler} has a second forward, which {sampling.guidance} does not guide.",
            [UNGUIDED],
        ),
    )

    def __init__(self, threshold: PerRequest = 0.9, gamma: PerRequest = 0.8) -> None:
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        in_range("sampler.gamma", gamma, 1e-9, 1.0, advice="1 accepts what is certain alone.")
        self.threshold, self.gamma = threshold, gamma

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=Statistic.of("current")),)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """draft [B, L]: what was proposed in the last step's first forward."""
        return super().start(canvas, blocks) | {"draft": torch.zeros_like(canvas.tokens)}

    def step(self, view: View, state: State) -> Step:
        confidence, drafts = view.scores.confidence, view.scores.drafts
        accepted = view.open & (confidence >= state["threshold"][:, None])
        commit = accepted | argmax_mask(confidence, view.open)
        candidates = view.open & ~commit & (confidence >= 0)
        next_positions = torch.where(candidates, rank(confidence, candidates)[1] + 1, 0)
        if drafts is None:
            return view.step(
                commit, accepted=accepted, next_positions=next_positions, state={"draft": view.scores.token}
            )
        verified = drafts.any(1, keepdim=True)
        likely = view.scores.statistic("current").exp() * (view.open & (drafts > 0))
        confirmed = run_of(likely, drafts, state["gamma"]) & view.open
        draft = torch.where(verified, state["draft"], view.scores.token)
        return view.step(
            torch.where(verified, confirmed, commit),
            tokens=draft,
            state={"draft": draft},
            confidence=torch.where(verified, likely, confidence),
            accepted=torch.where(verified, confirmed, accepted),
            next_positions=torch.where(verified, 0, next_positions),
        )


def run_of(likely: Tensor, number: Tensor, bound: Tensor) -> Tensor:
    """The longest run [B, L] of positions, in the order of their ``number`` [B, L] (0: none), whose probabilities
    ``likely`` [B, L] have a product of at least ``bound`` [B]."""
    order = torch.where(number > 0, number, number.shape[1] + 1).argsort(1)
    fine = likely.gather(1, order).cumprod(1) >= bound[:, None]
    return torch.zeros_like(fine).scatter(1, order, fine) & (number > 0)
