"""Commit generously, and take back what a second test of the same forward denies (WINO, arXiv 2507.18578).

The rule is that of Feng-Hong/WINO-DLLM@9549a1d: LLaDA/decoding.py (decoding_wino), LLaDA/modeling_llada.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dllm.common.errors import Set, in_range
from dllm.common.ranking import argmax_mask, top_k_mask
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas, PerRequest
from dllm.contract.clash import UNGUIDED, Clash
from dllm.contract.readouts import Shadow
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.parts.samplers.base import Sampler

FIRST = 30  # commits that a block's first turn assumes the turn before it had


class WINO(Sampler):
    """Commit what exceeds ``threshold``, at most min(max(floor(0.7 masks), 5), 20) positions; if nothing does, the most
    confident one. A turn that commits several also takes back the block's committed tokens whose probability is below
    ``back_threshold``, the least likely first, and fewer than the turn before had committed.

    That probability comes from shadow queries of the same forward: one for every column of the block, a mask that sees
    every column but its own, and the other shadows. So a turn may take back more than it commits. A block of K columns
    still takes at most K turns, because its commits exceed what it takes back by at least one a turn.
    """

    traits = SamplerTraits(stateless=False, deterministic=True, by_confidence=True, revocable=True)
    per_request = ("threshold", "back_threshold")
    clashes = (
        Clash(
            lambda c: c.model.prediction_shift,
            "{sampler} scores a committed token at its own position, but this model predicts it from the one before "
            "(Dream).",
            [Set("sampler", "saber")],
            "It remasks, too.",
        ),
        Clash(
            lambda c: c.sampling.guidance,
            "{sampler} has shadow queries, which {sampling.guidance} does not guide.",
            [UNGUIDED],
        ),
    )

    def __init__(self, threshold: PerRequest = 0.7, back_threshold: PerRequest = 0.9) -> None:
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        in_range("sampler.back_threshold", back_threshold, 0.0, 1.0)
        self.threshold, self.back_threshold = threshold, back_threshold

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=(Shadow(),)),)

    @property
    def per_block(self) -> Mapping[str, float]:
        return {"before": FIRST}

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """before [B]: commits of the last turn."""
        return super().start(canvas, blocks) | {"before": torch.full_like(canvas.start, FIRST)}

    def step(self, view: View, state: State) -> Step:
        confidence, masks = view.scores.confidence, (view.canvas.undecided & view.blocks.in_block).sum(1)
        accepted = view.open & (confidence > state["threshold"][:, None])
        accepted = top_k_mask(confidence, accepted, (7 * masks // 10).clamp(5, 20))
        commit = accepted | (argmax_mask(confidence, view.open) & ~accepted.any(1, keepdim=True))
        count, likely = commit.sum(1), view.scores.of(Shadow()).exp()
        committed = view.blocks.in_block & view.canvas.revisable
        doubtful = committed & (likely < state["back_threshold"][:, None]) & (count > 1)[:, None]
        remask = top_k_mask(-likely, doubtful, state["before"] - 1)
        return view.step(commit, accepted=accepted, remask=remask, state={"before": count})
