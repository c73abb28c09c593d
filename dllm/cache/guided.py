"""Classifier-free guidance under any policy: every request twice, as it is and with its given positions masked.

Both halves keep rows of their own and follow the same plan. The policy sees a batch of 2 B rows and never knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dllm.blocks.base import Span
from dllm.cache.access import Access, Room
from dllm.cache.base import Call, Plan, Session
from dllm.canvas import Canvas, select
from dllm.models.transformer import Exchanged, Projected
from dllm.record.cost import ForwardCost


class Guided(Session):
    """``inner`` was started on the doubled canvas; what comes and goes here counts B rows or N candidates, except the
    forward itself, which runs on 2 N."""

    def __init__(self, inner: Session, rows: int) -> None:
        self.inner, self.size, self.candidates = inner, rows, rows

    def plan(self, canvas: Canvas, span: Span, upcoming: Tensor | None) -> Plan:
        both = twice(torch.arange(self.size, device=canvas.request.device), 0)
        upcoming = None if upcoming is None else upcoming[both]
        plan = self.inner.plan(canvas.select(both), select(span, both), upcoming)
        columns = plan.columns  # the halves may watch different rows (Elastic-Cache): both compute them all
        union = None if columns is None else columns[: self.size] | columns[self.size :]
        widths = None if plan.widths is None else plan.widths[: self.size]
        return replace(select(plan, both[: self.size]), columns=union, widths=widths)

    def begin(self, plan: Plan, candidates: Canvas, owner: Tensor | None) -> Sequence[Call]:
        """``candidates`` [2 N] are doubled already; plan [N] and owner [N] are not."""
        self.candidates = len(candidates.request) // 2
        both = twice(torch.arange(self.candidates, device=candidates.request.device), 0)
        doubled = replace(select(plan, both), widths=None if plan.widths is None else plan.widths * 2)
        return self.inner.begin(doubled, candidates, None if owner is None else twice(owner, self.size))

    def use(self, call: Call) -> None:
        self.inner.use(call)

    def enter(self, layer: int, hidden: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.inner.enter(layer, hidden, columns)

    def exchange(self, layer: int, fresh: Projected, columns: Tensor | None) -> Exchanged:
        return self.inner.exchange(layer, fresh, columns)

    def attend(self, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        return self.inner.attend(layer, fresh, columns)

    def access(self) -> Access:
        return self.inner.access()

    def lacks(self) -> tuple[int, ...] | None:
        return self.inner.lacks()

    def furnish(self, room: Room) -> None:
        self.inner.furnish(room)

    def kept(self, rows: Tensor) -> None:
        self.inner.kept(twice(rows, self.candidates))

    def count(self) -> ForwardCost:
        return self.inner.count().halves()

    def select(self, rows: Tensor) -> Session:
        return Guided(self.inner.select(twice(rows, self.size)), len(rows))


def twice(rows: Tensor, offset: int) -> Tensor:
    """Row numbers, and behind them the same for the second half, which starts at ``offset``."""
    return torch.cat([rows, rows + offset])
