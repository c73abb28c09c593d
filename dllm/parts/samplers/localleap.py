"""Commit near a confident position at a lower threshold (LocalLeap, arXiv 2510.07081)."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.errors import Refusal, in_range
from dllm.common.ranking import argmax_mask
from dllm.contract import State, Step, View
from dllm.contract.canvas import PerRequest
from dllm.contract.traits import SamplerTraits
from dllm.parts.samplers.base import Sampler


class LocalLeap(Sampler):
    """Commit each open position whose confidence reaches ``threshold``: an anchor. Within ``radius`` columns of an
    anchor, ``relaxed_threshold`` is enough. Positions committed by the relaxed threshold are not anchors in the same
    turn."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=True)

    per_request = ("threshold", "relaxed_threshold", "radius")

    def __init__(
        self, threshold: PerRequest = 0.9, relaxed_threshold: PerRequest = 0.75, radius: PerRequest = 4
    ) -> None:
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        in_range("sampler.relaxed_threshold", relaxed_threshold, 0.0, 1.0)
        in_range("sampler.radius", radius, 0)
        if (torch.as_tensor(relaxed_threshold) > torch.as_tensor(threshold)).any():
            raise Refusal(
                "{sampler.relaxed_threshold} must not exceed {sampler.threshold}: it is the easier bar near an anchor.",
                [relaxed_threshold, threshold],
            )
        self.threshold, self.relaxed_threshold, self.radius = threshold, relaxed_threshold, radius

    def step(self, view: View, state: State) -> Step:
        confidence = view.scores.confidence
        anchors = view.open & (confidence >= state["threshold"][:, None])
        near = distance_to(anchors) <= state["radius"][:, None]
        accepted = anchors | (view.open & near & (confidence >= state["relaxed_threshold"][:, None]))
        return view.step(accepted | argmax_mask(confidence, view.open), accepted=accepted)


def distance_to(where: Tensor) -> Tensor:
    """Columns from each position to the nearest True of its row [B, L]; infinite in rows without one."""
    columns = torch.arange(where.shape[1], device=where.device, dtype=torch.float64)
    left = torch.where(where, columns, -torch.inf).cummax(1).values
    right = torch.where(where, columns, torch.inf).flip(1).cummin(1).values.flip(1)
    return torch.minimum(columns - left, right - columns)
