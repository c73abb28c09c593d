"""Cache a position one forward after the one that committed it (dKV-Cache-Decode, arXiv 2505.15781)."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.cache.base import Cache, Session
from dllm.cache.buffer import Buffered
from dllm.canvas import Canvas
from dllm.contract import BlockState, ForwardPlan
from dllm.errors import UserError, not_one_of
from dllm.models.config import ModelConfig

SHIFTS = ("un", "un_right")


class DKV(Cache):
    """Every forward computes what was still masked one turn ago; every ``refresh_interval``-th forward is full.

    LLaDA counts forwards within a block, whose first two are full. Dream counts them over the whole row, and there
    ``shift_type`` says when position j is no longer computed: un: once j + 1 is decided; un_right: once both are.
    """

    regions = frozenset({"block", "suffix", "ahead", "answer"})
    committed = False

    def __init__(self, refresh_interval: int = 8, shift_type: str = "un") -> None:
        if refresh_interval < 1:
            raise UserError(f"cache.refresh_interval={refresh_interval} must be at least 1 (1 is cache=none).")
        if shift_type not in SHIFTS:
            raise not_one_of("cache.shift_type", shift_type, SHIFTS)
        self.refresh_interval, self.shift_type = refresh_interval, shift_type

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return Delayed(canvas, config, self.refresh_interval, self.shift_type)


class Delayed(Buffered):
    def __init__(self, canvas: Canvas, config: ModelConfig, interval: int, shift_type: str) -> None:
        super().__init__(canvas, config)
        self.interval, self.shift_type = interval, shift_type

    def queries(self, canvas: Canvas, blocks: BlockState, announced: Tensor) -> ForwardPlan:
        if self.config.prediction_shift == 0:
            full = (blocks.forwards < 2) | (blocks.forwards % self.interval == 0)
            late = self.masks | canvas.masked  # a mask now, but none before: a commit was undone
            return ForwardPlan.of(canvas, blocks.shapes, full[:, None] | late)
        full = blocks.turn % self.interval == 0
        return ForwardPlan.of(canvas, blocks.shapes, full[:, None] | ~self.settled(canvas, blocks))

    def settled(self, canvas: Canvas, blocks: BlockState) -> Tensor:
        """Columns [B, L] that a shifted model need not compute any more, by the masks of the last turn."""
        decided = ~(self.masks | canvas.masked)
        after = torch.cat([decided[:, 1:], decided[:, :1]], 1)  # the last column takes position 0's value
        first = decided.gather(1, canvas.first[:, None])
        end = canvas.columns == (canvas.length - 1)[:, None]
        begun = (blocks.turn > 1)[:, None]  # both types treat what is settled before the first commit alike
        un = torch.where(end, first & begun, after)
        if self.shift_type == "un":
            return un
        both = decided & after
        before = torch.cat([both[:, :1], both[:, :-1]], 1)
        return torch.where(begun, torch.where(end, before, both), un)
