"""Fix the positions of the next turns by one full forward (ReCAP, arXiv 2505.19089, carried over from masked image
models).

The rule is that of liebenxj/ReCAP@4d1da38: examples/MaskGIT+ReCAP/cache_decoding.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.errors import in_range
from dllm.common.ranking import argmax_mask, rank
from dllm.contract import State, Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.traits import Schedule
from dllm.parts.samplers.scheduled import Scheduled


class Groups(Scheduled):
    """Commit along a power curve: of N masks floor(N (1 - (i / S)^``power``)) are left after i of S ``steps``, and at
    least one is committed in each (steps None: one by one). The steps go in groups: the first ``full_steps`` steps are
    groups by themselves, later ones have ``local_steps`` further steps. A group's first forward ranks all masks; the
    group's other steps commit the next ones of that ranking, without reading their forwards. They are announced,
    so ``cache=recap cache.targets=announced`` computes little else.
    """

    traits = Scheduled.traits.but(stateless=False, plans_ahead=True)

    def __init__(self, steps: int | None = None, power: float = 2.5, full_steps: int = 0, local_steps: int = 1) -> None:
        super().__init__(steps)
        in_range("sampler.power", power, 0.1, 100.0)
        in_range("sampler.full_steps", full_steps, 0, advice="It counts forwards.")
        in_range("sampler.local_steps", local_steps, 0, advice="It counts forwards; 0 is a schedule without groups.")
        self.power, self.full_steps, self.local_steps = power, full_steps, local_steps

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """place [B, L]: a position's place in the ranking of its group's first forward, from 0. passed [B]: how many
        places of it are committed."""
        memory = {"place": torch.zeros_like(canvas.tokens), "passed": torch.zeros_like(canvas.start)}
        return super().start(canvas, blocks) | memory

    def step(self, view: View, state: State) -> Step:
        index, confidence = view.block_step, view.scores.confidence
        first = self._inside(index) == 0
        place = torch.where(first[:, None], rank(confidence, view.open)[1], state["place"])
        passed = torch.where(first, 0, state["passed"]) + self.count(view, state, index)
        commit = view.open & (place < passed[:, None])
        commit = torch.where(commit.any(1, keepdim=True), commit, argmax_mask(confidence, view.open))
        goes_on = (self._inside(index + 1) > 0) & (index + 1 < self.block_steps(view, state))
        limit = passed + self.count(view, state, index + 1)
        remaining = view.canvas.undecided & view.blocks.in_block & ~commit
        ahead = remaining & (place < limit[:, None]) & goes_on[:, None]
        next_positions = torch.where(ahead, rank(-place.double(), ahead)[1] + 1, 0)
        return view.step(commit, next_positions=next_positions, state={"place": place, "passed": passed})

    def count(self, view: View, state: State, index: Tensor) -> Tensor:
        """How many positions forward ``index`` [B] of the block commits [B]: the last one as many as there are."""
        masks, steps = view.blocks.masks, self.block_steps(view, state)

        def remaining(forwards: Tensor) -> Tensor:
            return ((1 - (forwards / steps.double()) ** self.power) * masks).floor().long()

        return torch.where(index < steps - 1, (remaining(index) - remaining(index + 1)).clamp(min=1), masks)

    def _inside(self, index: Tensor) -> Tensor:
        """The place of forward ``index`` [B] of a block in its group, from 0."""
        return torch.where(index < self.full_steps, 0, (index - self.full_steps) % (1 + self.local_steps))
