"""Grow an answer before and while it is decoded (DAEDAL, arXiv 2508.00819, as its released code has it)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dllm.common.errors import in_range
from dllm.common.ranking import argmax_mask
from dllm.contract import State, Step, View
from dllm.contract.canvas import Canvas, PerRequest, per_row
from dllm.contract.reshape import LengthChange
from dllm.contract.traits import LengthTraits
from dllm.parts.lengths.by_end import ByEnd, end_confidence


class Daedal(ByEnd):
    """Before anything is decided, append masks until the model itself would end the text inside the canvas. While
    decoding, replace the least certain mask of the open block by ``factor`` masks.

    limit: columns of an answer at most. factor: masks appended at once, and masks that replace one. checked: ends of
    text that the model must see, over which their probability is averaged. sure_end: the average that ends the growth
    before the decode; sure_end_inside: the average from which nothing is inserted. doubt: the probability below which a
    mask is one to expand.
    """

    traits = LengthTraits(changes=True, moves=True)

    def __init__(
        self,
        limit: PerRequest = 2048,
        factor: int = 8,
        checked: int = 32,
        sure_end: float = 0.5,
        sure_end_inside: float = 0.9,
        doubt: float = 0.1,
    ) -> None:
        super().__init__(limit, factor, checked)
        in_range("length.factor", factor, 2, advice="It is how many masks take the place of one.")
        for name, value in (("sure_end", sure_end), ("sure_end_inside", sure_end_inside), ("doubt", doubt)):
            in_range(f"length.{name}", value, 0.0, 1.0)
        self.sure_end, self.sure_end_inside, self.doubt = sure_end, sure_end_inside, doubt

    def start(self, canvas: Canvas) -> State:
        return super().start(canvas) | {"grown": torch.zeros_like(canvas.shortened)}

    def waits(self, state: State) -> Tensor | None:
        return ~state["grown"]

    def may_wait(self, canvas: Canvas) -> Tensor:
        return 2 * per_row(self.limit, canvas).long() + self.factor

    def change(self, canvas: Canvas, view: View, step: Step, state: State) -> tuple[LengthChange, State]:
        sure, grown = end_confidence(view, self.eos_id, self.checked), state["grown"]
        room = canvas.start + state["limit"] - canvas.end
        grows = ~grown & (sure < self.sure_end) & (room > 0)
        ends = ~grown & ~grows
        doubted = view.open & ~step.commit & (view.scores.confidence < self.doubt)
        expands = grown & (sure < self.sure_end_inside) & (room > 0) & doubted.any(1)
        least = argmax_mask(-view.scores.confidence, doubted)
        change = replace(
            LengthChange.none(canvas),
            at=torch.where(least, canvas.columns, 0).amax(1),
            insert=(self.factor - 1) * expands,
            append=torch.minimum(room, torch.full_like(room, self.factor)) * grows,
            fill=torch.minimum(room, torch.full_like(room, self.checked // 2)).clamp(min=0) * ends,
        )
        end = canvas.end + change.insert + change.append + change.fill
        return replace(change, end=torch.minimum(end, canvas.end + room.clamp(min=0))), {"grown": grown | ends}
