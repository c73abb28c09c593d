"""Commit in an order known in advance, random or given (random remasking; cache=dkv_greedy needs it)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dllm.common.errors import Refusal, UnknownChoice
from dllm.common.noise import uniform
from dllm.common.ranking import rank, top_k_mask
from dllm.contract import State, Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.clash import Clash
from dllm.contract.traits import Schedule
from dllm.parts.samplers.scheduled import Scheduled

ORDERS = ("random", "left_to_right")


class Order(Scheduled):
    """Commit positions in a fixed order, as many per forward as ``steps`` implies (None: ``per_step``).

    positions: ``random``, ``left_to_right``, or the answer-relative positions in order, each named once.
    """

    traits = Scheduled.traits.but(plans_ahead=True, fixed_order=True)
    clashes = (
        *Scheduled.clashes,
        Clash(
            lambda c: (
                not isinstance(c.part.positions, str)
                and c.gen_length is not None
                and sorted(c.part.positions) != list(range(c.gen_length))
            ),
            "{sampler.positions:name} must name each of the {gen_length:value} answer positions once, from 0 on.",
        ),
    )

    def __init__(self, positions: str | Sequence[int] = "random", steps: int | None = None, per_step: int = 1) -> None:
        if isinstance(positions, str) and positions not in ORDERS:
            raise UnknownChoice("sampler.positions", positions, ORDERS, " or a list of answer-relative positions")
        if not isinstance(positions, str) and len(set(positions)) != len(positions):
            raise Refusal(
                "{sampler.positions:name} names a position twice; every position of the answer is committed once."
            )
        super().__init__(steps, per_step)
        self.positions = positions
        self.traits = self.traits.but(left_to_right=positions == "left_to_right")

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        return super().start(canvas, blocks) | {"priority": self._priority(canvas)}

    def _priority(self, canvas: Canvas) -> Tensor:
        """Priority of each column [B, L]; the largest comes first."""
        relative = canvas.columns - canvas.start[:, None]
        if isinstance(self.positions, str):
            return uniform(canvas.seed[:, None], relative, 3) if self.positions == "random" else -relative.double()
        rank = torch.argsort(torch.tensor(list(self.positions), device=relative.device))
        return -rank[relative.clamp(0, len(rank) - 1)].double()

    def step(self, view: View, state: State) -> Step:
        commit = top_k_mask(state["priority"], view.open, self.quota(view, state))
        remaining = view.canvas.undecided & view.blocks.in_open & ~commit
        later = replace(view, open=remaining, blocks=view.blocks.after_forward())
        place = rank(state["priority"], remaining)[1]
        ahead = remaining & (place < self.quota(later, state)[:, None])
        return view.step(commit, next_positions=torch.where(ahead, place + 1, 0))
