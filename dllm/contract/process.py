"""What undecided positions show: a mask, or noise that the network learned to undo.

``masked`` means undecided under either process. Whatever an undecided position shows is not a token of the text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dllm.common.noise import mixed
from dllm.contract.canvas import Canvas

FILL = 1 << 40  # keeps noise apart from the draws of tokens, which hash seed, column and turn alone
_POSITIVE = (1 << 62) - 1  # bits of a hash that count


@dataclass(frozen=True)
class Uniform:
    """Ids drawn from the whole vocabulary with equal probability (DiffusionGemma, DUO), where other models have masks,
    which requests hold from the start. In papers: uniform-state diffusion."""

    vocab: int  # V, how many ids there are

    def fill(self, canvas: Canvas) -> Canvas:
        """The canvas [B] as its first forward sees it."""
        return canvas.show(canvas.masked, self.noise(canvas, torch.zeros_like(canvas.start)))

    def noise(self, canvas: Canvas, turn: Tensor) -> Tensor:
        """Ids [B, L], a function of the row's seed, the column and the row's ``turn`` [B]."""
        return self.ids(canvas.seed[:, None], canvas.columns, turn[:, None])

    def ids(self, seed: Tensor | int, columns: Tensor, turn: Tensor | int) -> Tensor:
        """The id of each seed, column and turn, as they broadcast."""
        return (mixed(seed, columns, turn, FILL) & _POSITIVE) % self.vocab
