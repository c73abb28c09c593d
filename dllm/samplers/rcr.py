"""Choose the block's committed positions anew in every forward (RCR of MDPO, arXiv 2508.13148)."""

from __future__ import annotations

import torch

from dllm.canvas import Canvas
from dllm.common.ranking import top
from dllm.contract import State, Step, View
from dllm.samplers.scheduled import Scheduled
from dllm.traits import Schedule


class RCR(Scheduled):
    """Running confidence remasking. Each forward raises the number of the block's committed positions by ``per_step``
    and chooses them anew: it ranks committed positions by their confidence when committed, open ones by their
    confidence now. The most confident stay or become committed; the others stay or become masks.
    """

    stateless = False
    revocable = True

    def __init__(self, per_step: int = 1) -> None:
        super().__init__(per_step=per_step)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """record [B, L]: the confidence of each commit."""
        return super().start(canvas, blocks) | {"record": torch.zeros_like(canvas.tokens, dtype=torch.float64)}

    def step(self, view: View, state: State) -> Step:
        committed = view.blocks.in_block & view.canvas.revisable
        record = torch.where(committed, state["record"], view.scores.confidence)
        wanted = committed.sum(1) + self.due(view, state)
        keep = top(record, committed | view.open, wanted)
        return view.step(keep & view.open, remask=committed & ~keep, state={"record": record})
