"""Choose the block's committed positions anew in every forward (RCR of MDPO, arXiv 2508.13148)."""

from __future__ import annotations

import torch

from dllm.canvas import Canvas
from dllm.common.ranking import top
from dllm.contract import Schedule, State, Step, View
from dllm.samplers.base import Sampler, quota
from dllm.samplers.static import block_steps, check_per_step


class RCR(Sampler):
    """Running confidence remasking. Each forward raises the number of the block's committed positions by ``per_step``
    and chooses them anew: it ranks committed positions by their confidence when committed, open ones by their
    confidence now. The most confident stay or become committed; the others stay or become masks.
    """

    stateless = False
    revocable = True

    def __init__(self, per_step: int = 1) -> None:
        check_per_step(per_step)
        self.per_step = per_step

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        return no_record(canvas)

    def step(self, view: View, state: State) -> Step:
        committed = view.blocks.in_block & view.canvas.committed
        record = torch.where(committed, state["record"], view.scores.confidence)
        wanted = committed.sum(1) + quota(view, block_steps(view, state, self.per_step))
        keep = top(record, committed | view.open, wanted)
        return view.step(keep & view.open, remask=committed & ~keep, state={"record": record})


def no_record(canvas: Canvas) -> State:
    """State of a rule that remembers each commit's confidence. record [B, L]: the confidence at commit. steps [B]: 0,
    which stands for one forward per ``per_step`` masks."""
    return {"record": torch.zeros_like(canvas.tokens, dtype=torch.float64), "steps": torch.zeros_like(canvas.start)}
