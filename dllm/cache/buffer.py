"""Keys and values kept by column: the buffers that all policies but ``none`` share.

Slot p of a layer's buffer belongs to canvas column p. Keys are stored after rotation, because a column's position never
changes. A policy only says which columns a forward computes: they are written first, then attention runs over the
buffer. Behind the L columns lie scratch slots. One takes what padded queries write. The others hold rows that no column
owns: shadow rows, and the queries of several candidates, which share every column that is not computed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm.cache.base import Cache, Session
from dllm.cache.calls import Group, RowNumbers, rows_by_call
from dllm.cache.columns import order_of
from dllm.cache.passes import Call, CandidateBuffers, CandidatePacking, ForwardPass
from dllm.common import debug
from dllm.common.rowwise import Owner, each_tensor, join, select, select_or_all
from dllm.contract import BlockState, ForwardPlan, Scores, State
from dllm.contract.canvas import Canvas, packed
from dllm.contract.checks import checked_plan, checked_start
from dllm.contract.shapes import HostView, Shapes
from dllm.contract.traits import CacheTraits
from dllm.errors import name_of
from dllm.models.attention import Visible
from dllm.models.config import ModelConfig
from dllm.models.memory import Buffers, DeviceCopies, Exchanged, KeyValues, Memory, Projected, StaticMemory


@dataclass(frozen=True)
class CacheView:
    """What a policy sees before a forward of B rows."""

    canvas: Canvas  # [B] the canvas
    blocks: BlockState  # [B] where its blocks stand
    next_positions: Tensor  # [B, L] what the sampler said it will commit next, numbered from 1 (0: not next)
    masks: Tensor  # [B, L] what was masked when the last forward was planned (before the first one: everything)
    attended: Tensor  # [B, L] the columns that its queries saw
    state: State  # [B, ...] what the policy remembers of the rows
    config: ModelConfig  # of the model

    def plan(
        self, columns: Tensor, *, committable: Tensor | None = None, forced: Tensor | None = None,
        keys: Tensor | None = None, state: State | None = None,
    ) -> ForwardPlan:  # fmt: skip
        """The plan that computes ``columns`` [B, L]. Defaults: every valid column may be committed and counts as a key,
        nothing is forced, and the policy remembers nothing new."""
        valid = self.canvas.valid
        return ForwardPlan(
            columns & valid, valid if committable is None else committable, forced,
            self.canvas.tokens[:, :0], valid if keys is None else keys, self.blocks.shapes, state or {},
        )  # fmt: skip


class Buffered(Cache):
    """Base of the policies that keep keys and values by column. A subclass implements ``plan``, and ``state`` if it
    remembers more than what was masked and attended to. attends_all: every forward attends to every valid column."""

    # as long as a subclass plans, and leaves session and memory as they are
    traits = CacheTraits(shadows=True, exposes_attention=True, attends_all=False)

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return BufferSession(self, canvas, config, self.traits.attends_all and not shrinks and bool(canvas.valid.all()))

    def state(self, canvas: Canvas) -> State:
        """What the policy remembers of the rows of ``canvas`` [B] before their first forward."""
        return {}

    def max_queries(self, known: Sequence[HostView], length: int, width: int, config: ModelConfig) -> tuple[int, ...]:
        """As ``Session.max_queries``, on a canvas of ``length`` columns (static caches only)."""
        raise NotImplementedError

    def host_counts(self, state: State) -> Tensor | None:
        """As ``Session.host_counts``, from the state after a forward."""
        return None

    def plan(self, view: CacheView) -> ForwardPlan:
        """Choose the columns of the next forward."""
        raise NotImplementedError

    def after_scores(self, state: State, scores: Scores) -> State:
        """The entries of the state that change with a forward's ``scores`` (see ``Session.after_scores``)."""
        return {}


class BufferSession(Session):
    """A policy's keys and values, by layer.

    Of the rows it remembers ``written`` [B, L] (columns that hold something), ``masks`` and ``attended`` (see
    ``CacheView``), and what the policy does.
    """

    def __init__(self, policy: Buffered, canvas: Canvas, config: ModelConfig, even: bool = False) -> None:
        self.policy, self.config, self.length = policy, config, canvas.masked.shape[1]
        self.rows, self.row_numbers = len(canvas.masked), RowNumbers()
        # The host knows: that every column is always attended to, so attention needs no mask, which would slow it down;
        # and that the keys of a row are its first columns, because every plan left them to be all valid ones.
        self.even, self.gapless = even, True
        self.stores: list[KeyValues | None] = [None] * config.layers  # of each layer; None before its first forward
        self.buffers: Buffers | None = None  # the memory they lie in, if it was lent

    def remembers(self, canvas: Canvas) -> State:
        own = checked_start(f"cache={name_of(self.policy)}: state()", self.policy.state(canvas), canvas)
        return {"written": canvas.no_positions, "attended": canvas.valid, "masks": ~canvas.no_positions, **own}

    def plan(self, canvas: Canvas, blocks: BlockState, next_positions: Tensor, remembered: State) -> ForwardPlan:
        old, shapes = remembered, blocks.shapes
        seen = CacheView(canvas, blocks, next_positions, old["masks"], old["attended"], old, self.config)
        plan = checked_plan(self.policy, self.policy.plan(seen), canvas, old)
        state = shapes.update(blocks.active, {**old, "masks": canvas.masked, **plan.state}, old)
        self.gapless = self.gapless and plan.keys is canvas.valid
        if not shapes.waits:
            return replace(plan, state=state)
        keys = shapes.update(blocks.active, plan.keys, old["attended"])
        return replace(plan, columns=plan.columns & blocks.active[:, None], keys=keys, state=state)

    def max_queries(self, known: Sequence[HostView], width: int) -> tuple[int, ...]:
        return self.policy.max_queries(known, self.length, width, self.config)

    def host_counts(self, remembered: State) -> Tensor | None:
        return self.policy.host_counts(remembered)

    def after_scores(self, remembered: State, scores: Scores) -> State:
        return remembered | self.policy.after_scores(remembered, scores)

    def graph_key(self) -> tuple[Hashable, ...]:
        addresses = (buffer.data_ptr() for store in self.stores for buffer in store or ())
        return (self.length, self.even, self.gapless, self.rows, *addresses)

    def missing_buffers(self) -> list[tuple[int, ...]] | None:
        if None not in self.stores:
            return None
        by_layer = map(self.config.key_heads, range(self.config.layers))
        return [(self.rows, heads, self.length + 1, size) for heads, size in by_layer]

    def attach_buffers(self, buffers: Buffers) -> None:
        self.stores, self.buffers = list(buffers.stores), buffers

    def begin(self, plan: ForwardPlan, candidates: Canvas, owner: Owner) -> ForwardPass:
        valid = candidates.valid
        queries, keys = plan.columns & valid, plan.keys if owner.is_single else valid
        whole = plan.shadows.shape[1] == 0 and plan.shapes.all(queries)
        widths = (self.length,) * len(valid) if whole else plan.shapes.widths(queries, owner)
        forward = ForwardPass((), owner, queries, keys, valid, plan.shadows, whole, plan.state)
        if not owner.is_single:
            return replace(forward, calls=self._branches(forward, candidates, widths, plan.shapes))
        written = plan.state["written"] | queries
        assert not debug.ON or bool((~keys | written).all()), "a column is attended to before it is written"
        calls = [
            replace(self._call(forward, part.rows, part.width, plan.shapes, candidates), ranges=part.ranges)
            for part in self.parts(widths, valid.device)
        ]
        return replace(forward, calls=calls)

    def parts(self, widths: Sequence[int], device: torch.device) -> list[Group]:
        """The rows of each call."""
        return rows_by_call(widths, device, self.row_numbers)

    def memory(self, forward: ForwardPass, call: Call) -> Memory:
        return BufferMemory(self, forward, call)

    def keep(self, forward: ForwardPass, chosen: Tensor, remembered: State) -> State:
        keys, queries = forward.keys, forward.queries
        if not forward.owner.is_single:
            keys, queries = keys[chosen], queries[chosen]
            self._keep_chosen(forward, chosen)
        seen = {"attended": keys, "written": remembered["written"] | queries}
        return {**remembered, **forward.noted, **seen}

    def _keep_chosen(self, forward: ForwardPass, chosen: Tensor) -> None:
        copies, everyone = DeviceCopies(), torch.arange(len(forward.keys), device=chosen.device)
        for call in forward.calls:
            ran = select_or_all(everyone, call.candidates)
            place = torch.full_like(everyone, -1).scatter(0, ran, everyone[: len(ran)])  # among the call's candidates
            rows = (place[chosen] >= 0).nonzero()[:, 0]
            for layer in range(len(self.stores)):
                self._keep(call, layer, rows, place[chosen[rows]], copies)

    def select(self, rows: Tensor) -> Session:
        copies, self.rows = DeviceCopies(), len(rows)
        self.stores = each_tensor(lambda buffer: moved_up(buffer, copies(rows, buffer.device)), self.stores)
        return self

    def join(self, fresh: Session) -> Session:
        assert isinstance(fresh, BufferSession)
        rows, self.rows = self.rows, self.rows + fresh.rows
        self.length, self.even, self.buffers = max(self.length, fresh.length), False, None
        shape = torch.Size((self.rows, self.length))
        self.stores = each_tensor(lambda buffer: grown(buffer, rows, shape), self.stores)
        return self

    def _call(self, forward: ForwardPass, rows: Tensor | None, width: int, shapes: Shapes, candidates: Canvas) -> Call:
        """A call of ``rows`` (None: all), none of which computes more than ``width`` columns."""
        queries, keys = select_or_all(forward.queries, rows), select_or_all(forward.keys, rows)
        columns = None if forward.whole else packed(queries, candidates.columns, width)
        mask, reach = (None, self.length) if self.even else seen(keys, shapes)
        order = select_or_all(order_of(candidates, self.config), rows)
        if order is not None:
            asking = order if columns is None else order.at(columns)
            visible = order.visible_to(asking, keys[:, :reach], self.config.window)
        else:
            visible = Visible(mask, keys.sum(1).int() if mask is not None and self.gapless else None)
        call = Call(rows, columns, columns, visible, reach, buffers=rows)
        if columns is None or forward.shadows.shape[1] == 0:
            return call
        return self._shadow(call, columns, select_or_all(forward.shadows, rows), keys)

    def _shadow(self, call: Call, columns: Tensor, shadows: Tensor, attended: Tensor) -> Call:
        """The call with shadow rows. They see every column but their own, and one another; no other row sees them."""
        extra, device = shadows.shape[1], shadows.device
        spare = self.length + 1 + torch.arange(extra, device=device).expand(len(shadows), -1)
        slots, rows = torch.cat([columns, spare], 1), torch.cat([columns, shadows], 1)
        visible = attended.new_zeros(*rows.shape, self.length + 1 + extra)
        visible[:, :, : self.length] = attended[:, None]
        places = torch.arange(self.length, device=device)
        visible[:, columns.shape[1] :, : self.length] &= shadows[:, :, None] != places
        visible[:, columns.shape[1] :, self.length + 1 :] = (shadows < self.length)[:, None]
        reach = self.length + 1 + extra
        return replace(call, columns=rows, slots=slots, visible=Visible(visible), reach=reach)

    def _branches(self, forward: ForwardPass, candidates: Canvas, widths: Sequence[int], shapes: Shapes) -> list[Call]:
        """Calls for several candidates a row. In rows whose candidates compute everything, each candidate gets buffers
        of its own, of which one is kept. In the others, candidates share what they do not compute."""
        owner, calls = forward.owner, list[Call]()
        fresh = owner.any((forward.queries == forward.valid).all(1))
        for refreshing in (True, False):
            run = (fresh[owner.row] == refreshing).nonzero()[:, 0]
            if len(run) == 0:
                continue
            width = max(widths[number] for number in run.tolist())
            some_run = None if len(run) == len(owner.row) else run
            if refreshing:
                call = self._call(forward, some_run, width, shapes, candidates)
                drafts = CandidateBuffers(select_or_all(owner.row, some_run), [None] * len(self.stores))
                calls.append(replace(call, drafts=drafts, buffers=None))
            else:
                calls.append(self._share(forward, some_run, packed(
                    select_or_all(forward.queries, some_run), candidates.columns, width)))  # fmt: skip
        return calls

    def _share(self, forward: ForwardPass, candidates: Tensor | None, columns: Tensor) -> Call:
        """A call in which the candidates of a row become one row of K n queries in scratch slots. A candidate's queries
        see each other, and the columns that are not computed."""
        rows, place = select_or_all(forward.owner.row, candidates).unique(return_inverse=True)
        beside, n = CandidatePacking.of(Owner(place, len(rows))), columns.shape[1]
        count = beside.width * n
        slots = self.length + 1 + torch.arange(count, device=columns.device).expand(len(rows), -1)
        own = torch.arange(beside.width, device=columns.device).repeat_interleave(n)
        frozen = select_or_all(forward.keys & ~forward.queries, candidates)[beside.candidates]
        visible = frozen.new_zeros(len(rows), count, self.length + 1 + count)
        visible[:, :, : self.length] = frozen.repeat_interleave(n, 1)
        visible[:, :, self.length + 1 :] = (own[:, None] == own) & beside.pack(columns < self.length)[:, None, :]
        buffers = None if len(rows) == self.rows else rows
        return Call(candidates, columns, slots, Visible(visible), self.length + 1 + count, buffers, beside)

    def _keep(self, call: Call, layer: int, rows: Tensor, at: Tensor, copies: DeviceCopies) -> None:
        """Keep the call's candidates ``at`` [b] in ``rows`` [b] of a layer's buffers."""
        store = self.stores[layer]
        if call.drafts is not None:
            drafts = call.drafts.stores[layer]
            assert drafts is not None
            rows, at = copies(rows, drafts[0].device), copies(at, drafts[0].device)
            if store is None:
                self.stores[layer] = select(drafts, at)
                return
            for buffer, draft in zip(store, drafts, strict=True):
                size = min(buffer.shape[2], draft.shape[2])
                buffer[rows, :, :size] = draft[at, :, :size]
            return
        assert call.columns is not None and call.side_by_side is not None and store is not None
        n, device = call.columns.shape[1], store[0].device
        rows, at, columns, place = (copies(one, device) for one in (rows, at, call.columns, call.side_by_side.place))
        slots = self.length + 1 + place[at, None] * n + torch.arange(n, device=device)
        for buffer in store:
            fresh = buffer.transpose(1, 2)[rows[:, None], slots]
            buffer.transpose(1, 2).index_put_((rows[:, None], columns[at]), fresh)


class BufferMemory(Memory):
    """The buffers of a session during one call of the network."""

    def __init__(self, session: BufferSession, forward: ForwardPass, call: Call) -> None:
        self.session, self.forward, self.call, self.copies = session, forward, call, DeviceCopies()

    def exchange(self, layer: int, fresh: Projected, columns: Tensor | None) -> Exchanged:
        self.buffer(layer, fresh)
        return self._access(fresh.query.device).exchange(layer, fresh, columns)

    def attend(self, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        if self.reader is not None and self.reader.reads(layer):
            return super().attend(layer, fresh, columns)
        self.buffer(layer, fresh)
        return self._access(fresh.query.device).attend(layer, fresh, columns)

    def access(self) -> StaticMemory:
        return self._access(self.forward.valid.device)

    def missing_buffers(self) -> list[tuple[int, ...]] | None:
        return self.session.missing_buffers()

    def attach_buffers(self, buffers: Buffers) -> None:
        self.session.attach_buffers(buffers)

    def note(self, name: str, found: Tensor) -> None:
        """Remember what the call found out about its rows under ``name``."""
        noted, candidates = self.forward.noted, self.call.candidates
        before = noted.get(name, self.forward.remembered[name])
        found = found.to(before.device)
        noted[name] = found if candidates is None else before.index_copy(0, candidates, found)

    def buffer(self, layer: int, fresh: Projected) -> KeyValues:
        """The buffers that the call writes to. The first forward makes them; more scratch slots widen them."""
        session, key, drafts = self.session, fresh.key, self.call.drafts
        held, size = session.stores[layer], max(self.call.reach, session.length + 1)
        if drafts is not None:
            own = blank(key, len(drafts.row), size)
            if held is not None and not self.forward.whole:
                row = self.copies(drafts.row, key.device)
                for new, old in zip(own, held, strict=True):
                    new[:, :, : session.length] = old[row, :, : session.length]
            drafts.stores[layer] = own
            return own
        if held is None or held[0].shape[2] < size:
            wider = blank(key, session.rows, size)
            for new, old in zip(wider, held or (), strict=False):
                new[:, :, : old.shape[2]] = old
            session.stores[layer] = held = wider
        return held

    def _access(self, device: torch.device) -> StaticMemory:
        """What a layer on ``device`` reads and writes."""
        call = self.call
        stores = self.session.stores if call.drafts is None else call.drafts.stores
        slots, rows = self.copies(call.slots, device), self.copies(call.buffers, device)
        return StaticMemory(self.copies.of(call.visible, device), slots, call.reach, stores, rows, call.ranges)


def seen(keys: Tensor, shapes: Shapes) -> tuple[Tensor | None, int]:
    """Which of the first ``reach`` columns are keys [B, reach] (None: all of them), and ``reach``."""
    reach = shapes.last_column(keys)
    part = keys[:, :reach]
    return (None if shapes.all(part) else part), reach


def blank(key: Tensor, rows: int, size: int) -> KeyValues:
    """Buffers [rows, H_kv, size, h] for keys like ``key`` [b, n, H_kv, h]. They hold zeros: even a masked NaN would
    spread."""
    keys, values = key.new_zeros(2, rows, key.shape[2], size, key.shape[3])
    return keys, values


def moved_up(store: Tensor, rows: Tensor) -> Tensor:
    """The given rows at the front of the same buffer, so that CUDA graphs recorded on it still find them."""
    store[: len(rows)] = store[rows]
    return store[: len(rows)]


def grown(store: Tensor, held: int, shape: torch.Size) -> Tensor:
    """A buffer of ``held`` rows [held, H_kv, S, h] with room for ``shape`` rows and columns, and a slot for padding."""
    return join(store[:held], store.new_zeros(shape[0] - held, store.shape[1], shape[1] + 1, store.shape[3]))
