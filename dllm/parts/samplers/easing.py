"""A threshold that eases as a block fills (Streaming-dLLM, arXiv 2601.17917)."""

from __future__ import annotations

import torch

from dllm.common.errors import in_range
from dllm.common.ranking import argmax_mask
from dllm.contract import State, Step, View
from dllm.contract.canvas import PerRequest
from dllm.contract.traits import SamplerTraits
from dllm.parts.samplers.base import Sampler


class Easing(Sampler):
    """Commit what reaches ``threshold`` in the forward that opens a block; in the others, what reaches
    threshold * (1 - ``alpha`` * (1 - r)). r is the masked share of the block and of the columns after it that its
    forwards see: the next ``suffix_window``, and the answer's last one (None: all). The most confident is always
    committed.

    suffix_masks: masks after the block count as masked (False: as known, as in the published loop of the dual cache,
    whose forwards do not compute them).
    """

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=True, ranks_by="confidence")

    per_request = ("threshold", "alpha")

    def __init__(
        self,
        threshold: PerRequest = 0.9,
        alpha: PerRequest = 0.1,
        suffix_window: int | None = 96,
        suffix_masks: bool = True,
    ) -> None:
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        in_range("sampler.alpha", alpha, 0.0, 1.0, "0 is a fixed threshold.")
        in_range("sampler.suffix_window", suffix_window, 0, advice="It counts columns; {null} is all of them.")
        self.threshold, self.alpha = threshold, alpha
        self.suffix_window, self.suffix_masks = suffix_window, suffix_masks

    def step(self, view: View, state: State) -> Step:
        confidence, masked, block = view.scores.confidence, view.canvas.undecided, view.blocks.in_block
        behind = (view.canvas.columns >= view.blocks.end[:, None]) & (view.canvas.columns < view.canvas.end[:, None])
        if self.suffix_window is not None:
            last = view.canvas.columns == view.canvas.end[:, None] - 1
            behind = behind & ((behind.cumsum(1) <= self.suffix_window) | last)
        region = (block & (view.canvas.columns < view.canvas.end[:, None])) | behind
        masks = masked & (region if self.suffix_masks else block)
        share = masks.sum(1).double() / region.sum(1).clamp(min=1)
        bar = state["threshold"] * (1 - state["alpha"] * (1 - share))
        bar = torch.where(view.block_step == 0, state["threshold"], bar)
        accepted = view.open & (confidence >= bar[:, None])
        return view.step(accepted | argmax_mask(confidence, view.open), accepted=accepted)
