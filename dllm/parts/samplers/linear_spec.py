"""Draft a window from masks, and keep what the causal rows of the same model say (linear speculation).

The rule is that of Nemotron-Labs-Diffusion's modeling_nemotron_labs_diffusion.py: linear_spec_generate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.errors import in_range
from dllm.common.ranking import argmax_mask
from dllm.contract import State, Step, View
from dllm.contract.canvas import Canvas, PerRequest
from dllm.contract.clash import COLD, Clash
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.parts.samplers.base import Sampler


class LinearSpec(Sampler):
    """A forward of masks drafts each open position whose confidence is at least ``threshold``, and always the most
    confident one, until the cache's window is full. Then a causal forward judges: of the drafts, those up to the first
    that is not its argmax are committed, and after them its own next token. So every token is the one that greedy
    autoregressive decoding gives, and each judging forward commits at least one.
    """

    traits = SamplerTraits(stateless=False, deterministic=True, verifies="in_place", by_confidence=False)
    per_request = ("threshold",)
    clashes = (
        Clash(
            lambda c: c.sampling.temperature != 0,
            "{sampling.temperature}: {sampler} keeps the drafts that are the likeliest token of a causal row, which "
            "must not be random.",
            [COLD],
        ),
    )

    def __init__(self, threshold: PerRequest = 0.0) -> None:
        in_range("sampler.threshold", threshold, 0.0, 1.0, advice="0 drafts the whole window in one forward.")
        self.threshold = threshold

    def may_wait(self, canvas: Canvas) -> Tensor:
        """Every forward that drafts adds a draft."""
        return torch.maximum(super().may_wait(canvas), canvas.end - canvas.start)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """draft [B, L]: what was drafted in each column."""
        return super().start(canvas, blocks) | {"draft": torch.zeros_like(canvas.tokens)}

    def step(self, view: View, state: State) -> Step:
        scores = view.scores
        verified = view.canvas.no_positions if scores.drafts is None else scores.drafts > 0
        judges = (view.open & verified).any(1, keepdim=True)
        wrong = (view.open & verified & (scores.token != state["draft"])).long()
        commit = view.open & judges & (wrong.cumsum(1) == wrong)
        sure = (scores.confidence >= state["threshold"][:, None]) | argmax_mask(scores.confidence, view.open)
        new = view.open & sure & ~judges
        drafts = (verified | new) & ~judges
        return view.step(
            commit,
            accepted=commit,
            next_positions=drafts * drafts.cumsum(1),
            state={"draft": torch.where(new, scores.token, state["draft"])},
        )
