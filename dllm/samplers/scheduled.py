"""What the rules with a fixed number of forwards share (LLaDA's schedule, arXiv 2502.09992, App. B.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.contract import State, View
from dllm.contract.canvas import Canvas
from dllm.contract.setting import Setting
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.errors import UserError, in_range
from dllm.samplers.base import Sampler


class Scheduled(Sampler):
    """Base of the rules that follow a fixed schedule. ``steps`` is the number of forwards for the whole answer. It is
    split evenly over the blocks, and each block's masks over the block's forwards. steps None: ``per_step`` positions
    per forward, and in a block's last one what is left.
    """

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=False)

    def __init__(self, steps: int | None = None, per_step: int = 1) -> None:
        in_range("sampler.steps", steps, 1, advice="{null} is one token per step.")
        in_range("sampler.per_step", per_step, 1)
        if steps is not None and per_step != 1:
            raise UserError(
                f"sampler.steps={steps} and sampler.per_step={per_step} say the same thing twice. Drop one."
            )
        self.steps, self.per_step = steps, per_step
        # More forwards than masks: some of them commit nothing.
        self.traits = self.traits.but(patience=max(self.traits.patience, steps or 0))

    def check(self, setting: Setting) -> None:
        setting.require_steps("sampler.steps", self.steps)

    def turns(self, canvas: Canvas) -> Tensor | None:
        masks = canvas.undecided.sum(1)
        return -(-masks // self.per_step) if self.steps is None else torch.full_like(masks, self.steps)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """steps [B]: forwards of each block, its share of ``steps``; 0: ``block_steps`` counts them by the masks."""
        steps, count = torch.zeros_like(canvas.start), blocks.count(canvas)
        if self.steps is not None and count is not None:
            steps = (self.steps // count).clamp(min=1)
        return super().start(canvas, blocks) | {"steps": steps}

    def block_steps(self, view: View, state: State) -> Tensor:
        """Forwards in the schedule of the current block [B]."""
        return torch.where(state["steps"] > 0, state["steps"], -(-view.blocks.masks.clamp(min=1) // self.per_step))

    def due(self, view: View, state: State, index: Tensor | None = None) -> Tensor:
        """How many positions the schedule commits in this forward [B]. Where ``steps`` are split, the first forwards of
        a block take one more (LLaDA's ``get_num_transfer_tokens``). The last one, and any after it, takes all that is
        open: a cache may have let fewer positions be committed than were due. index [B]: that of this forward in the
        schedule (None: ``view.block_step``).
        """
        masks, index = view.blocks.masks, view.block_step if index is None else index
        steps = self.block_steps(view, state)
        split = masks // steps + (index < masks % steps)
        return torch.where(index < steps - 1, torch.where(state["steps"] > 0, split, self.per_step), view.open.sum(1))
