"""Choose the committed positions again in every forward (RCR of MDPO, arXiv 2508.13148).

The rule is that of autonomousvision/mdpo@e6ae439: src/mdlm_generation_utils.py (diffusion_generate, rcr) and
src/llada/generate.py (gamma_func), and of ParallelBench's copy of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dllm.common.errors import in_choices
from dllm.common.ranking import top_k_mask
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.traits import Schedule
from dllm.parts.samplers.base import ranking, ranking_statistics
from dllm.parts.samplers.scheduled import Scheduled

# Share of a block's masks that is left after the share r of its forwards; masks: how many it had.
CURVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda r, masks: 1 - r,
    "cosine": lambda r, masks: (r * (math.pi / 2)).cos(),
    "square": lambda r, masks: 1 - r**2,
    "cubic": lambda r, masks: 1 - r**3,
    "log": lambda r, masks: -r.log2() / masks.clamp(min=2).log2(),
    "exp": lambda r, masks: 1 - 2 ** (-masks.clamp(min=2).log2() * (1 - r)),
}
FLOOR = 1e-6  # of that share; the published code's


class RCR(Scheduled):
    """Commit again in every forward (running confidence remasking). A curve says how many masks of a block are left
    after each of its forwards. Which ones is decided again every time: committed positions are ranked by their score
    when they were committed, masks by their score now, and the best stay or become committed.

    That is among all columns of the block. Over several blocks the published loop ranks earlier ones, too:
    ``blocks=growing``. curve: ``linear``, ``cosine``, ``square``, ``cubic``, ``log`` or ``exp``. steps, per_step: how
    many forwards, as in ``Scheduled``. score: as in ``Static``.
    """

    traits = Scheduled.traits.but(stateless=False, revocable=True)

    def __init__(
        self, per_step: int = 1, steps: int | None = None, curve: str = "linear", score: str = "low_confidence"
    ) -> None:
        super().__init__(steps, per_step)
        in_choices("sampler.curve", curve, tuple(CURVES))
        in_choices("sampler.score", score, ("low_confidence", "margin", "entropy"))
        self.curve, self.score = curve, score
        self.traits = self.traits.but(by_confidence=score == "low_confidence")

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=ranking_statistics(self.score)),)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """record [B, L]: the score of each commit."""
        return super().start(canvas, blocks) | {"record": torch.zeros_like(canvas.tokens, dtype=torch.float64)}

    def step(self, view: View, state: State) -> Step:
        committed = view.blocks.in_block & view.canvas.revisable
        masks = (view.canvas.undecided & view.blocks.in_block).sum(1)
        record = torch.where(committed, state["record"], ranking(view.scores, self.score))
        keep = top_k_mask(record, committed | view.open, committed.sum(1) + masks - self.masks_after(view, state))
        return view.step(keep & view.open, remask=committed & ~keep, state={"record": record})

    def masks_after(self, view: View, state: State) -> Tensor:
        """Masks of the block that are left after this forward [B]: floor(masks * curve), in float64 as published."""
        masks, steps = view.blocks.masks.double(), self.block_steps(view, state)
        share = CURVES[self.curve]((view.block_step + 1).clamp(max=steps) / steps.double(), masks).clamp(FLOOR, 1.0)
        return torch.where(view.block_step < steps - 1, (masks * share).floor().long(), 0)
