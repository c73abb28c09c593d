"""Grow and cut an answer while it is decoded (rho-EOS, arXiv 2601.22527, as its released code has it)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dllm.common.errors import Refusal, in_choices, in_range
from dllm.contract import State, Step, View
from dllm.contract.canvas import Canvas, PerRequest, per_row
from dllm.contract.reshape import LengthChange
from dllm.contract.traits import LengthTraits
from dllm.parts.lengths.by_end import ByEnd, end_confidence

LAST_TURN = 64  # after which no row changes its length
MOST_TIMES = 8  # times the factor: columns that one turn may append or cut
SCHEDULES = ("const", "linear", "exp")


class RhoEos(ByEnd):
    """After every turn, append masks if the forward does not see the end of the text within the canvas, and cut columns
    off, decided ones too, if it sees too much of it.

    limit: columns of an answer at most; a row that has reached it keeps its length. factor: columns appended or cut for
    one step of distance. checked: ends of text over which the forward's probability is averaged (``end_confidence``).
    low, high: the averages below which a row grows and above which it is cut. schedule: columns by the distance in
    tenths, rounded up: always ``factor`` (const), as many times ``factor`` (linear), or twice as many for each (exp).
    """

    traits = LengthTraits(changes=True, takes_back=True)

    def __init__(
        self,
        limit: PerRequest = 2048,
        factor: int = 8,
        checked: int = 32,
        low: float = 0.4,
        high: float = 0.6,
        schedule: str = "exp",
    ) -> None:
        super().__init__(limit, factor, checked)
        in_range("length.factor", factor, 1)
        in_range("length.low", low, 0.0, 1.0)
        in_range("length.high", high, 0.0, 1.0)
        in_choices("length.schedule", schedule, SCHEDULES)
        if low > high:
            raise Refusal("{length.low} must be at most {length.high}, or rows would only grow.", [low, high])
        self.low, self.high, self.schedule = low, high, schedule

    def may_wait(self, canvas: Canvas) -> Tensor:
        return LAST_TURN + per_row(self.limit, canvas).long()

    def change(self, canvas: Canvas, view: View, step: Step, state: State) -> tuple[LengthChange, State]:
        sure, length, limit = end_confidence(view, self.eos_id, self.checked), canvas.end - canvas.start, state["limit"]
        free = (length < limit) & (view.blocks.turn <= LAST_TURN)
        # float32 throughout, as in the code: at sure = 0 the distance is on a border of the rounding
        low, high, tenth = (sure.new_tensor(value) for value in (self.low, self.high, 0.1))
        grows, shrinks = free & (sure < low), free & (sure > high) & ~(sure < low)
        steps = (torch.where(grows, low - sure, sure - high) / tenth).ceil().long()
        size = self.factor * self.times(steps)
        change = replace(LengthChange.none(canvas), append=torch.minimum(size, limit - length) * grows)
        end = torch.where(shrinks, canvas.start + (length - size).clamp(min=0), canvas.end + change.append)
        return replace(change, end=end), {}

    def times(self, steps: Tensor) -> Tensor:
        """How many times the factor a distance of that many tenths [B] is worth."""
        if self.schedule == "const":
            return torch.ones_like(steps)
        times = steps if self.schedule == "linear" else 2 ** (steps - 1).clamp(min=0)
        return times.clamp(1, MOST_TIMES)
