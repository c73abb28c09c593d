"""Keys and values kept by column: the buffers that all policies but ``none`` share.

Slot p of a layer's buffer belongs to canvas column p. Keys are stored after rotation, because a column's position never
changes. A policy only says which columns a forward computes: they are written first, then attention runs over the
buffer. Scratch slots follow the L columns. One takes what padded queries write. The others hold rows that no column
owns: shadow rows (``shadows.py``), and the queries of several candidates (``candidates.py``).

A policy that also decides while the network runs, layer by layer, has a ``BufferMemory`` of its own:
``docs/add_a_cache.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from dllm.common import debug
from dllm.common.errors import name_of
from dllm.common.rowwise import Owner, select_or_all
from dllm.contract import BlockState, ForwardPlan, Scores, State
from dllm.contract.canvas import Canvas, packed
from dllm.contract.checks import checked_plan, checked_start
from dllm.contract.shapes import HostView, Shapes
from dllm.contract.traits import CacheTraits, declared
from dllm.models.config import ModelConfig
from dllm.models.network.attention import Visible
from dllm.models.network.memory import Memory
from dllm.parts.cache.base import Cache, Session
from dllm.parts.cache.buffer_memory import BufferMemory
from dllm.parts.cache.calls import Group, rows_by_call
from dllm.parts.cache.candidates import CandidateCalls, keep_candidates
from dllm.parts.cache.columns import order_of
from dllm.parts.cache.passes import Call, ForwardPass
from dllm.parts.cache.shadows import with_shadows


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
        self,
        columns: Tensor,
        *,
        committable: Tensor | None = None,
        forced: Tensor | None = None,
        keys: Tensor | None = None,
        state: State | None = None,
    ) -> ForwardPlan:
        """The plan that computes ``columns`` [B, L]. Defaults: every valid column may be committed and counts as a key,
        nothing is forced, and the policy remembers nothing new."""
        valid = self.canvas.valid
        return ForwardPlan(
            columns & valid,
            valid if committable is None else committable,
            forced,
            self.canvas.tokens[:, :0],
            valid if keys is None else keys,
            self.blocks.shapes,
            state or {},
        )


class Buffered(Cache):
    """Base of the policies that keep keys and values by column. A subclass implements ``plan``, and ``state`` if it
    remembers more than what was masked and attended to. attends_all: every forward attends to every valid column."""

    # as long as a subclass plans, and leaves its memory as it is
    traits = CacheTraits(shadows=True, exposes_attention=True, attends_all=False, leads=True, heads="local")

    def __init_subclass__(cls) -> None:
        declared(cls, "CacheTraits", "memory", "own_pass")

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return ColumnSession(self, canvas, config, self.traits.attends_all and not shrinks and bool(canvas.valid.all()))

    def state(self, canvas: Canvas) -> State:
        """What the policy remembers of the rows of ``canvas`` [B] before their first forward."""
        return {}

    def knowing(self, state: State, is_computed: Tensor) -> State:
        """The ``state`` of rows some of whose columns are computed, ``is_computed`` [B, L]. Policies that share
        remember ``exact`` [B, L], columns that stay as they are, and the ``tokens`` [B, L] of the last forward."""
        return {**state, "exact": state["exact"] | is_computed}

    def final(self, state: State) -> tuple[Tensor, Tensor]:
        """As ``Session.final`` (policies that share)."""
        return state["tokens"], state["exact"]

    def max_queries(
        self, host_views: Sequence[HostView], length: int, width: int, config: ModelConfig
    ) -> tuple[int, ...]:
        """As ``Session.max_queries``, on a canvas of ``length`` columns."""
        raise NotImplementedError

    def counts(self, view: CacheView) -> list[Tensor]:
        """As ``Session.counts``; ``view`` is that of the coming forward, but that its ``masks`` may be older."""
        return []

    def most(self, host_views: Sequence[HostView], length: int, config: ModelConfig) -> tuple[int, ...]:
        """As ``Session.most``, on a canvas of ``length`` columns."""
        return ()

    def plan(self, view: CacheView) -> ForwardPlan:
        """Choose the columns of the next forward."""
        raise NotImplementedError

    def after_scores(self, state: State, scores: Scores) -> State:
        """The entries of the state that change with a forward's ``scores`` (see ``Session.after_scores``)."""
        return {}

    def widths(self, plan: ForwardPlan, config: ModelConfig) -> list[Tensor]:
        """The further numbers of ``Session.widths``."""
        return []

    def own_pass(
        self, session: ColumnSession, forward: ForwardPass, plan: ForwardPlan, candidates: Canvas
    ) -> ForwardPass:
        """The forward, with what the policy's memory reads besides."""
        return forward

    def shared_call(self, several: CandidateCalls, some: Tensor | None) -> Call:
        """The call of ``some`` candidates [b] (None: all) that share what is kept of their rows."""
        return several.side_by_side(some)

    def memory(self, session: ColumnSession, forward: ForwardPass, call: Call) -> Memory:
        """As ``Session.memory``."""
        return BufferMemory(session, forward, call)


@final
class ColumnSession(Session):
    """The session of every policy that keeps by column.

    Of the rows it remembers ``written`` [B, L] (columns that hold something), ``masks`` and ``attended`` (see
    ``CacheView``), and what the policy does.
    """

    policy: Buffered

    def remembers(self, canvas: Canvas) -> State:
        state = checked_start(f"{{cache={name_of(self.policy)}}}: state()", self.policy.state(canvas), canvas)
        written = canvas.no_positions
        if self.kept.prefixes:
            written = written.clone()
            for row, prefix in self.kept.prefixes:
                written[row, : prefix.columns] = True
            state = self.policy.knowing(state, written)
        return {"written": written, "attended": canvas.valid, "masks": ~canvas.no_positions, **state}

    def final(self, state: State) -> tuple[Tensor, Tensor]:
        return self.policy.final(state)

    def plan(self, canvas: Canvas, blocks: BlockState, next_positions: Tensor, state: State) -> ForwardPlan:
        before, shapes, view = state, blocks.shapes, self._view(canvas, blocks, next_positions, state)
        plan = checked_plan(self.policy, self.policy.plan(view), canvas, before)
        state = shapes.update(blocks.active, {**before, "masks": canvas.masked, **plan.state}, before)
        self.gapless = self.gapless and plan.keys is canvas.valid
        if not shapes.waits:
            return replace(plan, state=state)
        keys = shapes.update(blocks.active, plan.keys, before["attended"])
        return replace(plan, columns=plan.columns & blocks.active[:, None], keys=keys, state=state)

    def _view(self, canvas: Canvas, blocks: BlockState, next_positions: Tensor, state: State) -> CacheView:
        masks, attended = state["masks"], state["attended"]
        return CacheView(canvas, blocks, next_positions, masks, attended, state, self.config, self.soft)

    def counts(self, canvas: Canvas, blocks: BlockState, next_positions: Tensor, state: State) -> list[Tensor]:
        return self.policy.counts(self._view(canvas, blocks, next_positions, state))

    def most(self, host_views: Sequence[HostView]) -> tuple[int, ...]:
        bounds = self.policy.most(host_views, self.length, self.config)
        return bounds if self.steady else tuple(self.length * (bound > 0) for bound in bounds)

    def widths(self, plan: ForwardPlan) -> list[Tensor]:
        return [plan.columns.sum(1), *self.policy.widths(plan, self.config)]

    def max_queries(self, host_views: Sequence[HostView], width: int) -> tuple[int, ...]:
        if self.policy.traits.bounds_by_masks and not self.steady:
            return (self.length,) * len(host_views)
        return self.policy.max_queries(host_views, self.length, width, self.config)

    def after_scores(self, state: State, scores: Scores) -> State:
        return state | self.policy.after_scores(state, scores)

    def begin(self, plan: ForwardPlan, candidates: Canvas, owner: Owner) -> ForwardPass:
        return self.policy.own_pass(self, self._begin(plan, candidates, owner), plan, candidates)

    def _begin(self, plan: ForwardPlan, candidates: Canvas, owner: Owner) -> ForwardPass:
        valid = candidates.valid
        queries, keys = plan.columns & valid, plan.keys if owner.is_single else plan.keys & valid
        whole = plan.shadows.shape[1] == 0 and plan.shapes.all(queries)
        widths = (self.length,) * len(valid) if whole else plan.shapes.widths(queries, owner)
        forward = ForwardPass((), owner, queries, keys, valid, plan.shadows, whole, plan.state)
        if not owner.is_single:
            several = CandidateCalls(
                forward,
                candidates,
                order_of(candidates, self.config),
                widths,
                len(self.stores),
                lambda some, width: self.call(forward, some, width, plan.shapes, candidates),
            )
            return replace(forward, calls=several.calls(self.row_numbers.price(valid.device), self.policy.shared_call))
        if debug.ON:
            unwritten = keys & ~plan.state["written"] & ~queries
            assert not bool(unwritten.any()), "a column is attended to before it is written"
        alone = self.traits.one_call
        parts = [Group(None, max(widths))] if alone else rows_by_call(widths, valid.device, self.row_numbers)
        calls = [
            replace(self.call(forward, part.rows, part.width, plan.shapes, candidates), ranges=part.ranges)
            for part in (part.among(plan.shapes.order) for part in parts)
        ]
        return replace(forward, calls=calls)

    def memory(self, forward: ForwardPass, call: Call) -> Memory:
        return self.policy.memory(self, forward, call)

    def keep(self, forward: ForwardPass, candidates: Tensor, state: State) -> State:
        keys, queries = forward.keys, forward.queries
        if not forward.owner.is_single:
            keys, queries = keys[candidates], queries[candidates]
            keep_candidates(self.stores, forward, candidates)
        columns_now = {"attended": keys, "written": state["written"] | queries}
        return {**state, **forward.notes, **columns_now}

    def call(self, forward: ForwardPass, rows: Tensor | None, width: int, shapes: Shapes, candidates: Canvas) -> Call:
        """A call of ``rows`` (None: all), each of at most ``width`` columns."""
        queries, keys = select_or_all(forward.queries, rows), select_or_all(forward.keys, rows)
        columns = None if forward.whole else packed(queries, candidates.columns, width)
        mask, reach = (None, self.length) if self.even else key_columns(keys, shapes)
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


def key_columns(keys: Tensor, shapes: Shapes) -> tuple[Tensor | None, int]:
    """Which of the first ``reach`` columns are keys [B, reach] (None: all of them), and ``reach``."""
    reach = shapes.last_column(keys)
    part = keys[:, :reach]
    return (None if shapes.all(part) else part), reach
