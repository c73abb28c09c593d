"""Decode the whole answer as one block (pure diffusion)."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.contract import State
from dllm.contract.canvas import Canvas
from dllm.contract.traits import BlocksTraits
from dllm.parts.blocks.base import Blocks


class Whole(Blocks):
    """One block from the start of the answer to its end."""

    traits = BlocksTraits(slides=False, rolls_back=False, follows=True)

    def containing(
        self, canvas: Canvas, column: Tensor, number: Tensor, params: State
    ) -> tuple[Tensor, Tensor, Tensor]:
        return canvas.start, canvas.end, torch.zeros_like(number)

    def count(self, canvas: Canvas) -> Tensor:
        return torch.ones_like(canvas.start)
