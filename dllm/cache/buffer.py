"""Keys and values kept by position: the memory that all real policies share.

Row p of a layer's buffer belongs to canvas column p; keys are stored after rotation, which never changes. A policy only
says, per forward, which columns are computed. They are written first, then attention runs over the buffer. Behind the
L columns lie scratch slots: one takes what padded queries write, the others hold rows that no column owns (shadow rows;
the queries of several candidates, which share everything that is not computed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

import dllm.debug as debug
from dllm.blocks.base import Span
from dllm.cache.access import Access, Room, Store
from dllm.cache.base import Call, Fold, Plan, Session
from dllm.cache.calls import rows_by_call
from dllm.canvas import Canvas, merge, of, pack, select
from dllm.cost import Work
from dllm.models.config import ModelConfig
from dllm.models.transformer import Exchanged, Projected


class Buffered(Session):
    """Base of the sessions that keep keys and values. A subclass chooses the query set (``queries``).

    ``written`` [B, L]: rows that hold something; ``attended`` [B, L]: rows that count as keys; ``masks`` [B, L]: what
    was masked when the last forward was planned. state: the names of all that a row has from one forward to the next.
    """

    state: ClassVar[tuple[str, ...]] = ("written", "attended", "masks")

    def __init__(self, canvas: Canvas, config: ModelConfig) -> None:
        self.config, self.length = config, canvas.masked.shape[1]
        self.stores: list[Store | None] = [None] * config.layers
        self.written = torch.zeros_like(canvas.valid)
        self.attended = canvas.valid
        self.masks = torch.ones_like(canvas.masked)
        self.fold: Fold | None = None
        self.branched: Tensor | None = None  # owner of the candidates that hold buffers of their own
        self.extra: Tensor | None = None  # shadow rows [N, 1]
        self.room: Room | None = None  # holds the buffers that came from outside
        self.even = False  # the host knows that every column is always attended: then no mask slows attention down

    def queries(self, canvas: Canvas, span: Span, upcoming: Tensor | None) -> Plan:
        """The policy: a Plan whose ``columns`` [B, L] are to be computed (None: all valid ones)."""
        raise NotImplementedError

    def plan(self, canvas: Canvas, span: Span, upcoming: Tensor | None) -> Plan:
        before = {name: getattr(self, name) for name in self.state}
        plan = self.queries(canvas, span, upcoming)
        self.masks = canvas.masked
        if span.acts is None:
            return plan
        for name, value in before.items():
            setattr(self, name, merge(span.acts, getattr(self, name), value))
        columns = canvas.valid if plan.columns is None else plan.columns
        return replace(plan, columns=columns & span.acts[:, None])

    def keep_attended(self, plan: Plan, candidates: Canvas, owner: Tensor | None) -> Tensor:
        """Rows [N, L] that count as keys."""
        return candidates.valid

    def begin(self, plan: Plan, candidates: Canvas, owner: Tensor | None) -> Sequence[Call]:
        valid = candidates.valid
        wanted = valid if plan.columns is None else plan.columns & valid
        attended = self.keep_attended(plan, candidates, owner)
        self.wanted, self.valid, self.keys = wanted, valid, attended
        self.fold, self.branched, self.extra = None, owner, None
        self.computed = torch.zeros_like(candidates.start)
        self.whole = plan.columns is None and plan.shadows is None and bool(valid.all())
        if self.whole:
            parts: list[tuple[Tensor | None, int]] = [(None, self.length)]
        else:
            widths = wanted.sum(1).tolist() if plan.widths is None else plan.widths
            parts = self.parts(widths, wanted.device) if owner is None else [(None, max(widths))]
        if owner is None:
            self.attended, self.written = attended, self.written | wanted
            holds = ~attended | self.written
            assert not debug.ON or bool(holds.all()), "a row is attended before it is written"
        elif self.whole or bool((wanted == valid).all(1).any()):
            self.drafts = list(self.stores)  # a refresh: each candidate gets its own buffer, one is kept
        else:
            self.branched = None
            return [self._share(pack(wanted, candidates.columns, parts[0][1]), attended & ~wanted, owner)]
        if plan.shadows is not None:
            self.extra = (plan.shadows < self.length).sum(1, keepdim=True)
        bounded = plan.widths is not None
        return [self._call(rows, width, bounded, plan.shadows, candidates) for rows, width in parts]

    def parts(self, widths: Sequence[int], device: torch.device) -> list[tuple[Tensor | None, int]]:
        """Rows by call (None: all), and each call's width."""
        return rows_by_call(widths, device)

    def visible(self, call: Call, keys: Tensor, candidates: Canvas) -> Tensor | None:
        """The keys that a call's queries see, of those [b, L] that count as keys, as in ``Access``."""
        return call.visible

    def _call(
        self, rows: Tensor | None, width: int, bounded: bool, shadows: Tensor | None, candidates: Canvas
    ) -> Call:
        """A call of some rows, none of which computes more than ``width`` columns."""
        wanted, keys = of(self.wanted, rows), of(self.keys, rows)
        columns = None if self.whole else pack(wanted, candidates.columns, width)
        visible, reach = (None if self.even else keys, self.length) if bounded else visible_part(keys)
        call = Call(rows, columns, columns, visible, reach)
        call = replace(call, visible=self.visible(call, keys, candidates))
        if shadows is not None and columns is not None:
            call = self._shadow(call, columns, of(shadows, rows), keys)
        self.computed[slice(None) if rows is None else rows] = (
            self.length if call.columns is None else call.columns.shape[1])  # fmt: skip
        return call

    def _share(self, columns: Tensor, frozen: Tensor, owner: Tensor) -> Call:
        """Candidates of a row become one row of K n queries in scratch slots: each sees the frozen rows and its own."""
        self.fold = fold = Fold.of(owner)
        n = columns.shape[1]
        count = fold.width * n
        slots = self.length + 1 + torch.arange(count, device=columns.device).expand(len(fold.index), -1)
        own = torch.arange(fold.width, device=columns.device).repeat_interleave(n)
        visible = frozen.new_zeros(len(fold.index), count, self.length + 1 + count)
        visible[:, :, : self.length] = fold.rows(frozen).repeat_interleave(n, 1)
        real = fold.rows(columns < self.length).flatten(1)
        visible[:, :, self.length + 1 :] = (own[:, None] == own) & real[:, None, :]
        self.own, first = columns, fold.index[:, 0]
        self.computed = torch.full_like(owner, n)
        self.computed[first] += n * (fold.width - owner.bincount())  # where there are fewer, the last one is repeated
        return Call(None, columns, slots, visible, self.length + 1 + count)

    def _shadow(self, call: Call, columns: Tensor, shadows: Tensor, attended: Tensor) -> Call:
        """Shadow rows see everything but their own column, and themselves; nobody sees them."""
        extra, device = shadows.shape[1], shadows.device
        spare = self.length + 1 + torch.arange(extra, device=device).expand(len(shadows), -1)
        slots = torch.cat([columns, spare], 1)
        rows = torch.cat([columns, shadows], 1)
        visible = attended.new_zeros(*rows.shape, self.length + 1 + extra)
        visible[:, :, : self.length] = attended[:, None]
        places = torch.arange(self.length, device=device)
        visible[:, columns.shape[1] :, : self.length] &= shadows[:, :, None] != places
        visible[:, columns.shape[1] :, self.length + 1 :] = torch.eye(extra, dtype=torch.bool, device=device)
        return replace(call, columns=rows, slots=slots, visible=visible, reach=self.length + 1 + extra)

    def enter(self, layer: int, hidden: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return hidden, columns

    def exchange(self, layer: int, fresh: Projected, columns: Tensor | None) -> Exchanged:
        self._room(layer, fresh)
        return self.access().exchange(layer, fresh, columns)

    def access(self) -> Access:
        call, stores = self.call, self.stores if self.branched is None else self.drafts
        return Access(call.visible, call.slots, call.reach, stores, call.rows)

    def lacks(self) -> tuple[int, ...] | None:
        config = self.config
        return (len(self.written), config.kv_heads, self.length + 1, config.head_dim) if None in self.stores else None

    def furnish(self, room: Room) -> None:
        self.stores, self.room = list(room.stores), room

    def _room(self, layer: int, fresh: Projected) -> Store:
        """The buffers that this forward writes to, made at the first forward and widened for more scratch slots."""
        stores = self.stores if self.branched is None else self.drafts
        key, held, size = fresh.key, self.stores[layer], max(self.call.reach, self.length + 1)
        if self.branched is not None:
            keys, values = (blank(key, len(self.branched), size) for _ in range(2))
            if held is not None and not self.whole:
                for new, old in zip((keys, values), held, strict=True):
                    new[:, :, : self.length] = old[self.branched, :, : self.length]
            held = (keys, values)
        elif held is None or held[0].shape[2] < size:
            wider = (blank(key, len(self.written), size), blank(key, len(self.written), size))
            for new, old in zip(wider, held or (), strict=False):
                new[:, :, : old.shape[2]] = old
            held = wider
        stores[layer] = held
        return held

    def kept(self, rows: Tensor) -> None:
        self.attended, self.written = self.keys[rows], self.written | self.wanted[rows]
        if self.fold is None:
            self.stores = [None if store is None else (store[0][rows], store[1][rows]) for store in self.drafts]
            return
        n = self.own.shape[1]
        slots = self.length + 1 + self.fold.place[rows, None] * n + torch.arange(n, device=rows.device)
        for store in self.stores:
            for buffer in store or ():
                fresh = buffer.gather(2, spread_over(slots, buffer))
                buffer.scatter_(2, spread_over(self.own[rows], buffer), fresh)

    def count(self) -> Work:
        queries = self.wanted.sum(1, keepdim=True)
        refreshed = torch.where((self.wanted == self.valid).all(1, keepdim=True), queries, 0)
        queries = queries if self.extra is None else queries + self.extra
        return Work(queries, self.keys.sum(1, keepdim=True), refreshed, self.computed[:, None])

    def select(self, rows: Tensor) -> Session:
        self.stores = [None if store is None else (moved_up(store[0], rows), moved_up(store[1], rows))
                       for store in self.stores]  # fmt: skip
        for name in self.state:
            setattr(self, name, select(getattr(self, name), rows))
        return self


def visible_part(attended: Tensor) -> tuple[Tensor | None, int]:
    """Which of the first ``reach`` columns are keys [B, reach] (None: all of them), and how many that is."""
    columns = torch.arange(1, attended.shape[1] + 1, device=attended.device)
    reach = int((attended * columns).amax())
    part = attended[:, :reach]
    return (None if bool(part.all()) else part), reach


def blank(key: Tensor, rows: int, size: int) -> Tensor:
    """A buffer [rows, H_kv, size, h] for keys like ``key`` [b, n, H_kv, h]. Zeros: a masked NaN would still spread."""
    return key.new_zeros(rows, key.shape[2], size, key.shape[3])


def moved_up(store: Tensor, rows: Tensor) -> Tensor:
    """The given rows of a buffer at its own place, so that what was recorded on it still finds them."""
    store[: len(rows)] = store[rows]
    return store[: len(rows)]


def spread_over(slots: Tensor, store: Tensor) -> Tensor:
    return slots[:, None, :, None].expand(-1, store.shape[1], -1, store.shape[3])
