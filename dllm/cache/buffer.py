"""Keys and values kept by column: the buffers that all policies but ``none`` share.

Slot p of a layer's buffer belongs to canvas column p. Keys are stored after rotation, because a column's position never
changes. A policy only says which columns a forward computes: they are written first, then attention runs over the
buffer. Scratch slots follow the L columns. One takes what padded queries write. The others hold rows that no column
owns: shadow rows (``shadows.py``), and the queries of several candidates (``candidates.py``).

A policy that only plans has a ``ColumnSession``. One that also decides while the network runs, layer by layer, has a
``BufferSession`` and a ``BufferMemory`` of its own: ``docs/add_a_cache.md``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self

import torch
from torch import Tensor

from dllm.cache.base import AnySession, Cache, Pass, StaticSession
from dllm.cache.buffer_memory import BufferMemory
from dllm.cache.calls import Group, RowNumbers, rows_by_call
from dllm.cache.candidates import calls_of_candidates, keep_candidates
from dllm.cache.columns import KeptRows, moved_up, order_of
from dllm.cache.pages import KnownPrefix
from dllm.cache.passes import Call, ForwardPass
from dllm.cache.shadows import with_shadows
from dllm.common import debug
from dllm.common.rowwise import Owner, each_tensor, join, select_or_all
from dllm.contract import BlockState, ForwardPlan, Scores, State
from dllm.contract.canvas import Canvas, packed
from dllm.contract.checks import checked_plan, checked_start
from dllm.contract.shapes import HostView, Shapes
from dllm.contract.traits import CacheTraits
from dllm.errors import name_of
from dllm.models.attention import Visible
from dllm.models.config import ModelConfig
from dllm.models.memory import Buffers, KeyValues, Memory


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
    soft: bool = False  # what columns of the open block show may be mixtures, not what is on the canvas

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
    traits = CacheTraits(shadows=True, exposes_attention=True, attends_all=False, heads="local")

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> AnySession:
        return ColumnSession(self, canvas, config, self.traits.attends_all and not shrinks and bool(canvas.valid.all()))

    def state(self, canvas: Canvas) -> State:
        """What the policy remembers of the rows of ``canvas`` [B] before their first forward."""
        return {}

    def knowing(self, state: State, known: Tensor) -> State:
        """The ``state`` of rows whose columns ``known`` [B, L] are already there (policies that share)."""
        raise NotImplementedError

    def final(self, remembered: State) -> tuple[Tensor, Tensor]:
        """The first two of ``Session.final`` (policies that share)."""
        raise NotImplementedError

    def max_queries(self, known: Sequence[HostView], length: int, width: int, config: ModelConfig) -> tuple[int, ...]:
        """As ``StaticSession.max_queries``, on a canvas of ``length`` columns."""
        raise NotImplementedError

    def plan(self, view: CacheView) -> ForwardPlan:
        """Choose the columns of the next forward."""
        raise NotImplementedError

    def after_scores(self, state: State, scores: Scores) -> State:
        """The entries of the state that change with a forward's ``scores`` (see ``Session.after_scores``)."""
        return {}


class BufferSession(StaticSession[ForwardPlan, Pass]):
    """A policy's keys and values, by layer. A subclass makes its own pass of a forward, in ``own_pass``, and hands it
    to a memory of its own, in ``memory``.

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
        self.kept: Sequence[KeptRows] = ()  # what layers keep by column besides these
        # Rows whose first columns are known, until the buffers have them.
        self.known: list[tuple[int, KnownPrefix]] = []
        self.buffers: Buffers | None = None  # the memory they are in, if it was lent
        self.named = 0  # what that memory, or memory of its own, is called on all ranks

    def remembers(self, canvas: Canvas) -> State:
        own = checked_start(f"cache={name_of(self.policy)}: state()", self.policy.state(canvas), canvas)
        written = canvas.no_positions
        if self.known:
            written = written.clone()
            for row, prefix in self.known:
                written[row, : prefix.columns] = True
            own = self.policy.knowing(own, written)
        return {"written": written, "attended": canvas.valid, "masks": ~canvas.no_positions, **own}

    @property
    def shares(self) -> bool:  # type: ignore[override]
        return self.policy.shares

    def final(self, remembered: State) -> tuple[Tensor, Tensor, Sequence[KeyValues | None]]:
        return *self.policy.final(remembered), self.stores

    def take_over(self, known: Sequence[KnownPrefix | None]) -> None:
        self.known = [(row, prefix) for row, prefix in enumerate(known) if prefix is not None]

    def write_known(self, layer: int) -> None:
        """Write what is known of the rows to the buffers of a layer, which are there now."""
        for row, prefix in self.known:
            for store, one in zip(self.stores[layer] or (), prefix.layers[layer], strict=True):
                store[row, :, : prefix.columns] = one.transpose(0, 1)
        if layer == len(self.stores) - 1:
            self.known = []

    def plan(self, canvas: Canvas, blocks: BlockState, next_positions: Tensor, remembered: State) -> ForwardPlan:
        old, shapes = remembered, blocks.shapes
        seen = CacheView(canvas, blocks, next_positions, old["masks"], old["attended"], old, self.config, self.soft)
        plan = checked_plan(self.policy, self.policy.plan(seen), canvas, old)
        state = shapes.update(blocks.active, {**old, "masks": canvas.masked, **plan.state}, old)
        self.gapless = self.gapless and plan.keys is canvas.valid
        if not shapes.waits:
            return replace(plan, state=state)
        keys = shapes.update(blocks.active, plan.keys, old["attended"])
        return replace(plan, columns=plan.columns & blocks.active[:, None], keys=keys, state=state)

    def max_queries(self, known: Sequence[HostView], width: int) -> tuple[int, ...]:
        return self.policy.max_queries(known, self.length, width, self.config)

    def after_scores(self, remembered: State, scores: Scores) -> State:
        return remembered | self.policy.after_scores(remembered, scores)

    def graph_key(self) -> tuple[Hashable, ...]:
        stores, kept = (one for store in self.stores for one in store or ()), (rows.layers for rows in self.kept)
        addresses = tuple(one.data_ptr() for one in chain(stores, *kept))
        places = addresses if self.config.ranks.size == 1 else (self.named,)
        return (self.length, self.even, self.gapless, self.rows, *places)

    def missing_buffers(self) -> list[tuple[int, ...]] | None:
        if None not in self.stores:
            return None
        by_layer, slots = map(self.config.key_heads, range(self.config.layers)), self.length + 1
        stores = [(self.rows, heads, slots, size) for heads, size in by_layer for _ in "kv"]
        return [*stores, *((self.rows, slots, *size) for rows in self.kept for size in rows.sizes)]

    def attach_buffers(self, buffers: Buffers) -> None:
        left, self.buffers, self.named = iter(buffers.tensors), buffers, buffers.name
        self.stores = [(next(left), next(left)) for _ in self.stores]
        for rows in self.kept:
            rows.layers = [next(left) for _ in rows.sizes]
        for layer in range(len(self.stores)):
            self.write_known(layer)

    def apart(self) -> Self:
        same, numbers = copy(self), copy(self.row_numbers)
        same.stores, same.buffers, same.row_numbers = list(self.stores), None, numbers
        same.kept = [copy(rows) for rows in self.kept]
        return same

    def begin(self, plan: ForwardPlan, candidates: Canvas, owner: Owner) -> Pass:
        return self.own_pass(self._begin(plan, candidates, owner), plan, candidates)

    def own_pass(self, forward: ForwardPass, plan: ForwardPlan, candidates: Canvas) -> Pass:
        """The forward, with what the memory of this session reads and finds out besides."""
        raise NotImplementedError

    def _begin(self, plan: ForwardPlan, candidates: Canvas, owner: Owner) -> ForwardPass:
        valid = candidates.valid
        queries, keys = plan.columns & valid, plan.keys if owner.is_single else valid
        whole = plan.shadows.shape[1] == 0 and plan.shapes.all(queries)
        widths = (self.length,) * len(valid) if whole else plan.shapes.widths(queries, owner)
        forward = ForwardPass((), owner, queries, keys, valid, plan.shadows, whole, plan.state)
        if not owner.is_single:
            calls = calls_of_candidates(
                forward, candidates, widths, self.rows, len(self.stores),
                lambda run, width: self.call(forward, run, width, plan.shapes, candidates),
            )  # fmt: skip
            return replace(forward, calls=calls)
        if debug.ON:
            unwritten = keys & ~plan.state["written"] & ~queries
            assert not bool(unwritten.any()), "a column is attended to before it is written"
        calls = [
            replace(self.call(forward, part.rows, part.width, plan.shapes, candidates), ranges=part.ranges)
            for part in (part.among(plan.shapes.order) for part in self.parts(widths, valid.device))
        ]
        return replace(forward, calls=calls)

    def parts(self, widths: Sequence[int], device: torch.device) -> list[Group]:
        """The rows of each call."""
        return rows_by_call(widths, device, self.row_numbers)

    def memory(self, forward: Pass, call: Call) -> Memory:
        return BufferMemory(self, forward, call)

    def keep(self, forward: Pass, chosen: Tensor, remembered: State) -> State:
        keys, queries = forward.keys, forward.queries
        if not forward.owner.is_single:
            keys, queries = keys[chosen], queries[chosen]
            keep_candidates(self.stores, forward, chosen)
        seen = {"attended": keys, "written": remembered["written"] | queries}
        return {**remembered, **forward.noted, **seen}

    def select(self, rows: Tensor) -> Self:
        if self.known:
            places = {old: new for new, old in enumerate(rows.tolist())}
            self.known = [(places[row], prefix) for row, prefix in self.known if row in places]
        self.rows, self.stores = len(rows), moved_up(self.stores, rows)
        for kept in self.kept:
            kept.select(rows)
        return self

    def join(self, fresh: Self) -> Self:
        rows, self.rows = self.rows, self.rows + fresh.rows
        self.length, self.even, self.buffers = max(self.length, fresh.length), False, None
        self.named = self.config.ranks.number()
        shape = torch.Size((self.rows, self.length))
        self.stores = each_tensor(lambda buffer: grown(buffer, rows, shape), self.stores)
        self.known += [(rows + row, prefix) for row, prefix in fresh.known]
        for layer in range(len(self.stores) if self.stores[0] is not None else 0):
            self.write_known(layer)
        for kept in self.kept:
            kept.grow(self.rows, self.length)
        return self

    def call(self, forward: ForwardPass, rows: Tensor | None, width: int, shapes: Shapes, candidates: Canvas) -> Call:
        """A call of ``rows`` (None: all), each of at most ``width`` columns."""
        queries, keys = select_or_all(forward.queries, rows), select_or_all(forward.keys, rows)
        columns = None if forward.whole else packed(queries, candidates.columns, width)
        mask, reach = (None, self.length) if self.even else seen(keys, shapes)
        order = select_or_all(order_of(candidates, self.config), rows)
        if order is not None:
            asking = order if columns is None else order.at(columns)
            visible = order.visible_to(asking, keys[:, :reach], self.config.window)
        else:
            visible = Visible(mask, keys.sum(1, dtype=torch.int32) if mask is not None and self.gapless else None)
        call = Call(rows, columns, columns, visible, reach, buffers=rows)
        if columns is None or forward.shadows.shape[1] == 0:
            return call
        return with_shadows(call, columns, select_or_all(forward.shadows, rows), keys)


class ColumnSession(BufferSession[ForwardPass]):
    """The session of a policy that only plans."""

    @property
    def leads(self) -> bool:  # type: ignore[override]
        return type(self) is ColumnSession  # others find out more about rows while the network runs

    def follow(self, leaders: Sequence[int]) -> None:
        led = [row for row, leader in enumerate(leaders) if row != leader]
        of = [leaders[row] for row in led]
        for buffer in (one for store in self.stores for one in store or ()):
            buffer[led] = buffer[of]

    def own_pass(self, forward: ForwardPass, plan: ForwardPlan, candidates: Canvas) -> ForwardPass:
        return forward


def seen(keys: Tensor, shapes: Shapes) -> tuple[Tensor | None, int]:
    """Which of the first ``reach`` columns are keys [B, reach] (None: all of them), and ``reach``."""
    reach = shapes.last_column(keys)
    part = keys[:, :reach]
    return (None if shapes.all(part) else part), reach


def grown(store: Tensor, held: int, shape: torch.Size) -> Tensor:
    """A buffer of ``held`` rows [held, H_kv, S, h] with room for ``shape`` rows and columns, and a slot for padding."""
    return join(store[:held], store.new_zeros(shape[0] - held, store.shape[1], shape[1] + 1, store.shape[3]))
