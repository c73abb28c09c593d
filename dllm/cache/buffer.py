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

from dllm.blocks.base import Span
from dllm.cache.access import Access, Room, Store
from dllm.cache.base import Call, Drafts, Fold, Plan, Session, computed
from dllm.cache.calls import rows_by_call
from dllm.canvas import Canvas, merge, of, pack, select
from dllm.common import debug
from dllm.models.config import ModelConfig
from dllm.models.transformer import Copies, Exchanged, Projected
from dllm.record.cost import ForwardCost


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
        self.calls: Sequence[Call] = ()  # of the forward under way
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
        self.wanted = wanted = valid if plan.columns is None else plan.columns & valid
        self.valid, self.keys = valid, self.keep_attended(plan, candidates, owner)
        self.extra = None
        self.whole = plan.columns is None and plan.shadows is None and bool(valid.all())
        widths = plan.widths
        if widths is None:
            widths = (self.length,) * len(valid) if self.whole else tuple(wanted.sum(1).tolist())
        if owner is not None:
            self.calls = self._branches(candidates, owner, widths, plan.widths is not None)
            return self.calls
        self.attended, self.written = self.keys, self.written | wanted
        assert not debug.ON or bool((~self.keys | self.written).all()), "a row is attended before it is written"
        if plan.shadows is not None:
            self.extra = (plan.shadows < self.length).sum(1, keepdim=True)
        self.calls = [
            self._call(rows, width, plan.widths is not None, candidates, plan.shadows)
            for rows, width in self.parts(widths, wanted.device)
        ]
        return self.calls

    def _branches(self, candidates: Canvas, owner: Tensor, widths: Sequence[int], bounded: bool) -> list[Call]:
        """Calls for several candidates a row. Where they compute everything, each gets buffers of its own, of which one
        is kept; the others share what they do not compute."""
        fresh = torch.zeros_like(self.written[:, 0]).scatter_reduce(
            0, owner, (self.wanted == self.valid).all(1), "amax")  # fmt: skip
        calls = []
        for refreshing, share in ((True, False), (False, True)):
            names = (fresh[owner] == refreshing).nonzero()[:, 0]
            if len(names) == 0:
                continue
            width = max(widths[name] for name in names.tolist())
            rows = None if len(names) == len(owner) else names
            if share:
                columns = pack(of(self.wanted, rows), candidates.columns, width)
                calls.append(self._share(rows, columns, of(owner, rows)))
            else:
                call = self._call(rows, width, bounded, candidates)
                drafts = Drafts(of(owner, rows), [None] * len(self.stores))
                calls.append(replace(call, drafts=drafts, buffers=None))
        return calls

    def parts(self, widths: Sequence[int], device: torch.device) -> list[tuple[Tensor | None, int]]:
        """Rows by call (None: all), and each call's width."""
        return rows_by_call(widths, device)

    def visible(self, call: Call, keys: Tensor, candidates: Canvas) -> Tensor | None:
        """The keys that a call's queries see, of those [b, L] that count as keys, as in ``Access``."""
        return call.visible

    def _call(
        self, rows: Tensor | None, width: int, bounded: bool, candidates: Canvas, shadows: Tensor | None = None
    ) -> Call:
        """A call of some rows, none of which computes more than ``width`` columns."""
        wanted, keys = of(self.wanted, rows), of(self.keys, rows)
        columns = None if self.whole else pack(wanted, candidates.columns, width)
        visible, reach = (None if self.even else keys, self.length) if bounded else visible_part(keys)
        call = Call(rows, columns, columns, visible, reach, buffers=rows)
        call = replace(call, visible=self.visible(call, keys, candidates))
        if shadows is None or columns is None:
            return call
        return self._shadow(call, columns, of(shadows, rows), keys)

    def _share(self, rows: Tensor | None, columns: Tensor, owner: Tensor) -> Call:
        """Candidates of a row become one row of K n queries in scratch slots: each sees the frozen rows and its own."""
        names, place = owner.unique(return_inverse=True)
        fold, n = Fold.of(place), columns.shape[1]
        count = fold.width * n
        slots = self.length + 1 + torch.arange(count, device=columns.device).expand(len(fold.index), -1)
        own = torch.arange(fold.width, device=columns.device).repeat_interleave(n)
        frozen = fold.rows(of(self.keys & ~self.wanted, rows))
        visible = frozen.new_zeros(len(fold.index), count, self.length + 1 + count)
        visible[:, :, : self.length] = frozen.repeat_interleave(n, 1)
        real = fold.rows(columns < self.length).flatten(1)
        visible[:, :, self.length + 1 :] = (own[:, None] == own) & real[:, None, :]
        buffers = None if len(names) == len(self.written) else names
        return Call(rows, columns, slots, visible, self.length + 1 + count, buffers, fold)

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
        return self._access(fresh.query.device).exchange(layer, fresh, columns)

    def access(self) -> Access:
        return self._access(self.written.device)

    def _access(self, device: torch.device) -> Access:
        """What a layer on ``device`` reads and writes."""
        call = self.call
        stores = self.stores if call.drafts is None else call.drafts.stores
        visible, slots, rows = (self.copies(one, device) for one in (call.visible, call.slots, call.buffers))
        return Access(visible, slots, call.reach, stores, rows)

    def lacks(self) -> tuple[int, ...] | None:
        config = self.config
        return (len(self.written), config.kv_heads, self.length + 1, config.head_dim) if None in self.stores else None

    def furnish(self, room: Room) -> None:
        self.stores, self.room = list(room.stores), room

    def _room(self, layer: int, fresh: Projected) -> Store:
        """The buffers that this call writes to, made at the first forward and widened for more scratch slots."""
        key, held, size = fresh.key, self.stores[layer], max(self.call.reach, self.length + 1)
        if (drafts := self.call.drafts) is not None:
            own = (blank(key, len(drafts.owner), size), blank(key, len(drafts.owner), size))
            if held is not None and not self.whole:
                owner = self.copies(drafts.owner, key.device)
                for new, old in zip(own, held, strict=True):
                    new[:, :, : self.length] = old[owner, :, : self.length]
            drafts.stores[layer] = own
            return own
        if held is None or held[0].shape[2] < size:
            wider = (blank(key, len(self.written), size), blank(key, len(self.written), size))
            for new, old in zip(wider, held or (), strict=False):
                new[:, :, : old.shape[2]] = old
            self.stores[layer] = held = wider
        return held

    def kept(self, rows: Tensor) -> None:
        self.attended, self.written = self.keys[rows], self.written | self.wanted[rows]
        copies, every = Copies(), torch.arange(len(self.keys), device=rows.device)
        for call in self.calls:
            names = of(every, call.rows)
            place = torch.full_like(every, -1).scatter(0, names, every[: len(names)])  # among the call's candidates
            mine = (place[rows] >= 0).nonzero()[:, 0]
            for layer in range(len(self.stores)):
                self._keep(call, layer, mine, place[rows[mine]], copies)

    def _keep(self, call: Call, layer: int, rows: Tensor, at: Tensor, copies: Copies) -> None:
        """Rows [b] of a layer's buffers go on with the call's candidates ``at`` [b]."""
        store = self.stores[layer]
        if call.drafts is not None:
            drafts = call.drafts.stores[layer]
            assert drafts is not None
            rows, at = copies(rows, drafts[0].device), copies(at, drafts[0].device)
            if store is None:
                self.stores[layer] = (drafts[0][at], drafts[1][at])
                return
            for buffer, draft in zip(store, drafts, strict=True):
                size = min(buffer.shape[2], draft.shape[2])
                buffer[rows, :, :size] = draft[at, :, :size]
            return
        assert call.columns is not None and call.fold is not None and store is not None
        n, device = call.columns.shape[1], store[0].device
        rows, at, columns, place = (copies(one, device) for one in (rows, at, call.columns, call.fold.place))
        slots = self.length + 1 + place[at, None] * n + torch.arange(n, device=device)
        for buffer in store:
            fresh = buffer.transpose(1, 2)[rows[:, None], slots]
            buffer.transpose(1, 2).index_put_((rows[:, None], columns[at]), fresh)

    def count(self) -> ForwardCost:
        queries = self.wanted.sum(1, keepdim=True)
        refreshed = torch.where((self.wanted == self.valid).all(1, keepdim=True), queries, 0)
        queries = queries if self.extra is None else queries + self.extra
        ran = computed(self.calls, len(queries), self.length, queries.device)
        return ForwardCost(queries, self.keys.sum(1, keepdim=True), refreshed, ran)

    def select(self, rows: Tensor) -> Session:
        copies, stores = Copies(), list[Store | None]()
        for store in self.stores:
            at = rows if store is None else copies(rows, store[0].device)
            stores.append(None if store is None else (moved_up(store[0], at), moved_up(store[1], at)))
        self.stores = stores
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
