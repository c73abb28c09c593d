"""Keys and values kept by position: the memory that all real policies share.

Row p of a layer's buffer belongs to canvas column p; keys are stored after rotation, which never changes. A policy only
says, per forward, which columns are computed. They are written first, then attention runs over the whole buffer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.blocks.base import Span
from dllm.cache.base import Plan, Session
from dllm.canvas import Canvas, pack
from dllm.models.config import ModelConfig


class Buffered(Session):
    """Base of the sessions that keep keys and values. A subclass chooses the query set (``queries``).

    ``written`` [B, L]: rows that hold something; ``attended`` [B, L]: rows that count as keys. With ``debug`` every
    forward asserts that the latter are among the former.
    """

    debug = False

    def __init__(self, canvas: Canvas, config: ModelConfig) -> None:
        self.config = config
        self.keys: list[Tensor | None] = [None] * config.layers
        self.values: list[Tensor | None] = [None] * config.layers
        self.new_keys: list[Tensor | None] = [None] * config.layers  # of several candidates, until one is kept
        self.new_values: list[Tensor | None] = [None] * config.layers
        self.written = torch.zeros_like(canvas.valid)
        self.attended = canvas.valid
        self.asked: Tensor | None = None
        self.several: Tensor | None = None
        self.masks = torch.ones_like(canvas.masked)

    def queries(self, canvas: Canvas, span: Span, upcoming: Tensor | None) -> Plan:
        """The policy: a Plan whose ``columns`` [B, L] are to be computed (None: all valid ones)."""
        raise NotImplementedError

    def plan(self, canvas: Canvas, span: Span, upcoming: Tensor | None) -> Plan:
        plan = self.queries(canvas, span, upcoming)
        self.masks = canvas.masked
        return plan

    def begin(self, plan: Plan, candidates: Canvas, owner: Tensor | None) -> Tensor | None:
        wanted = candidates.valid if plan.columns is None else plan.columns & candidates.valid
        self.asked, self.several = wanted.sum(1, keepdim=True), owner
        whole = plan.columns is None and bool(candidates.valid.all())
        columns = None if whole else pack(wanted, candidates.columns)
        if columns is not None:  # repeat a real query instead of padding: it writes the same row twice
            columns = torch.where(columns == len(candidates.columns), columns[:, :1], columns)
        attended = self.keep_attended(plan, candidates, owner)
        self.visible = None if bool(attended.all()) else attended
        if owner is None:  # several candidates leave the session as it was, until one of them is kept
            self.attended = attended
            self.written = self.written | wanted
            assert not self.debug or bool((~self.attended | self.written).all()), (
                "a row is attended before it is written"
            )
        return columns

    def keep_attended(self, plan: Plan, candidates: Canvas, owner: Tensor | None) -> Tensor:
        return candidates.valid

    def enter(self, layer: int, hidden: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return hidden, columns

    def exchange(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, columns: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        if columns is None:
            kept, values = key.contiguous(), value.contiguous()
        else:
            kept, values = (self._scatter(store[layer], fresh, columns) for store, fresh in (
                (self.keys, key), (self.values, value)))  # fmt: skip
        store = (self.keys, self.values) if self.several is None else (self.new_keys, self.new_values)
        store[0][layer], store[1][layer] = kept, values
        return kept, values, self.visible

    def _scatter(self, store: Tensor | None, fresh: Tensor, columns: Tensor) -> Tensor:
        rows, heads, _, size = fresh.shape
        if store is None:
            store = fresh.new_zeros(rows, heads, self.attended.shape[1], size)
        elif self.several is not None:  # candidates write to copies; only what is kept counts later
            store = store[self.several]
        place = columns[:, None, :, None].expand(-1, heads, -1, size)
        return store.scatter_(2, place, fresh)

    def kept(self, rows: Tensor) -> None:
        self.keys = [None if store is None else store[rows] for store in self.new_keys]
        self.values = [None if store is None else store[rows] for store in self.new_values]

    def count(self) -> Tensor:
        assert self.asked is not None
        return self.asked

    def select(self, rows: Tensor) -> Session:
        self.keys = [None if store is None else store[rows] for store in self.keys]
        self.values = [None if store is None else store[rows] for store in self.values]
        self.written, self.attended, self.masks = self.written[rows], self.attended[rows], self.masks[rows]
        return self
