"""Commit dilated groups that hold no neighbours, in about log2(block) turns a block (DUS, arXiv 2506.19037)."""

from __future__ import annotations

import torch

from dllm.common.ranking import best
from dllm.contract import State, Step, View
from dllm.errors import in_range
from dllm.samplers.base import Sampler


class DUS(Sampler):
    """Turn i of a block commits the open positions whose offset in the block is a multiple of length / base^(i+1).

    Each turn divides the spacing by ``base``. At spacing 1 it commits all that is left. A turn whose group is already
    committed takes the most confident open position instead.
    """

    by_confidence = False
    prescribed = True

    def __init__(self, base: int = 2) -> None:
        in_range("sampler.base", base, 2, advice="The spacing is divided by it every turn.")
        self.base = base

    def step(self, view: View, state: State) -> Step:
        length = view.blocks.end - view.blocks.begin
        spacing = (length.double() / self.base ** (view.index.double() + 1)).ceil().long().clamp(min=1)
        offset = view.canvas.columns - view.blocks.begin[:, None]
        group = view.open & (offset % spacing[:, None] == 0)
        commit = torch.where(group.any(1, keepdim=True), group, best(view.scores.confidence, view.open))
        return view.step(commit)
