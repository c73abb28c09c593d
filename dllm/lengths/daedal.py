"""Grow an answer before and while it is decoded (DAEDAL, arXiv 2508.00819, as its released code has it)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dllm.common.ranking import argmax_mask
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas, PerRequest, per_row
from dllm.contract.reshape import LengthChange
from dllm.contract.setting import Setting, replaced
from dllm.contract.traits import LengthTraits
from dllm.errors import in_range
from dllm.lengths.base import READS_END, Length, check_limit, end_confidence, limit_of
from dllm.models.ids import Ids


class Daedal(Length):
    """Before anything is decided, append masks until the model itself would end the text inside the canvas. While
    decoding, put ``factor`` masks in the place of the mask of the open block that the model knows least of.

    limit: columns of an answer at most. factor: masks appended at once, and masks in the place of one. checked: ends of
    text that the model must see, over which their probability is averaged. sure_end: the average that ends the growth
    before the decode; sure_end_inside: the average from which nothing is inserted. doubt: the probability below which a
    mask is one to expand.
    """

    traits = LengthTraits(changes=True, moves=True)
    per_request = ("limit",)

    def __init__(
        self, limit: PerRequest = 2048, factor: int = 8, checked: int = 32, sure_end: float = 0.5,
        sure_end_inside: float = 0.9, doubt: float = 0.1,
    ) -> None:  # fmt: skip
        in_range("length.limit", limit, 1)
        in_range("length.factor", factor, 2, advice="It is how many masks take the place of one.")
        in_range("length.checked", checked, 1)
        for name, value in (("sure_end", sure_end), ("sure_end_inside", sure_end_inside), ("doubt", doubt)):
            in_range(f"length.{name}", value, 0.0, 1.0)
        self.limit, self.factor, self.checked = limit, factor, checked
        self.sure_end, self.sure_end_inside, self.doubt = sure_end, sure_end_inside, doubt
        self.eos_id, self.most = -1, 1 << 30  # until they are resolved

    def resolved(self, ids: Ids, most: int) -> Length:
        return replaced(self, eos_id=ids.eos, most=most)

    def check(self, setting: Setting) -> None:
        check_limit(self.limit, setting)

    def needs(self) -> tuple[Need, ...]:
        return READS_END

    def start(self, canvas: Canvas) -> State:
        return {"limit": limit_of(self.limit, self.most, canvas), "grown": torch.zeros_like(canvas.shortened)}

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
        wanted = canvas.end + change.insert + change.append + change.fill
        return replace(change, end=torch.minimum(wanted, canvas.end + room.clamp(min=0))), {"grown": grown | ends}
