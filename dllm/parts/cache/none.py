"""Compute every column in every forward: no cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dllm.common.rowwise import Owner, select_or_all
from dllm.contract import BlockState, ForwardCost, ForwardPlan, State
from dllm.contract.canvas import Canvas, packed
from dllm.contract.reshape import Reshape
from dllm.contract.shapes import HostView
from dllm.models.config import ModelConfig
from dllm.models.network.attention import Visible
from dllm.models.network.masked_lm_class import TransformersKind
from dllm.models.network.memory import Memory, NoCacheMemory
from dllm.models.network.visibility import CAUSAL
from dllm.parts.cache.base import Session
from dllm.parts.cache.calls import Group, rows_by_call
from dllm.parts.cache.columns import committable_next, order_of
from dllm.parts.cache.kept import Kept
from dllm.parts.cache.passes import Call, ForwardPass
from dllm.parts.cache.shadows import shadow_visibility
from dllm.parts.cache.suffix import Pruning


class NoCache(Pruning):
    """The reference that every other policy is compared with. suffix_window and the like: see ``Pruning``."""

    traits = Pruning.traits.but(
        regions=frozenset({"block", "suffix", "ahead", "answer"}),
        kinds=CAUSAL | {"full", TransformersKind.name},
        committed=True,
        soft=True,
        branches=True,
        shadows=True,
        exposes_attention=True,
        exact=True,
        bounded_shapes=True,
        full_on_open=False,
        bounds_late=True,
        follows=True,
    )

    @property
    def name(self) -> str:
        return "dpad" if self.prunes else "none"

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return NoCacheSession(self, canvas, config, not (shrinks or self.prunes) and bool(canvas.valid.all()))

    def kept(self) -> tuple[Kept, ...]:
        return ()


class NoCacheSession(Session):
    """Queries and keys are all valid columns, but for those that the ``policy`` leaves out (``dropped`` [B, L]).
    Unless rows are ``even``, padding and cut columns are not computed."""

    policy: NoCache
    narrows = False  # plans leave columns out

    def remembers(self, canvas: Canvas) -> State:
        return {"dropped": canvas.no_positions} if self.policy.prunes else {}

    def plan(self, canvas: Canvas, blocks: BlockState, next_positions: Tensor, state: State) -> ForwardPlan:
        columns, (committable, forced) = canvas.valid, committable_next(canvas, self.config)
        if self.policy.prunes:
            dropped = {"dropped": self.policy.dropped(canvas, blocks, state["dropped"])}
            state = blocks.shapes.update(blocks.active, dropped, state)
            columns = columns & ~state["dropped"]
        return ForwardPlan(columns, committable, forced, canvas.tokens[:, :0], columns, blocks.shapes, state)

    def max_queries(self, host_views: Sequence[HostView], width: int) -> tuple[int, ...]:
        return (self.length,) * len(host_views)

    def begin(self, plan: ForwardPlan, candidates: Canvas, owner: Owner) -> ForwardPass:
        valid, parts = candidates.valid, [Group(None, len(candidates.columns))]
        queries = valid & plan.columns if self.narrows or self.policy.prunes else valid
        if not self.even or plan.shapes.leaders:
            widths = plan.shapes.widths(queries, owner)
            parts = rows_by_call(widths, valid.device, self.row_numbers)
            parts = [part.among(plan.shapes.order) for part in parts]
        calls = [self._call(select_or_all(queries, part.rows), part, plan.shadows, candidates) for part in parts]
        return ForwardPass(calls, owner, queries, queries, valid, plan.shadows, self.even, plan.state)

    def memory(self, forward: ForwardPass, call: Call) -> Memory:
        return NoCacheMemory(call.visible)

    def cost(self, forward: ForwardPass, scored_rows: Tensor) -> ForwardCost:
        rows = forward.queries.sum(1, keepdim=True) + forward.extra_rows()
        return ForwardCost(rows, rows, torch.zeros_like(rows), forward.rows_run(), scored_rows)

    def move(self, reshape: Reshape, state: State) -> State:
        self.kept.length, self.even = reshape.source.shape[1], False
        return {name: reshape.moved(value) for name, value in state.items()}

    def _call(self, where: Tensor, part: Group, shadows: Tensor, candidates: Canvas) -> Call:
        """A call of some candidates that computes the columns ``where`` [b, L]."""
        rows, length = part.rows, len(candidates.columns)
        queries = packed(where, candidates.columns, part.width) if not self.even else None
        keys, count, beside = None if queries is None else queries < length, None, None
        order = select_or_all(order_of(candidates, self.config), rows)
        if queries is not None and not shadows.shape[1] and order is None:
            count = where.sum(1).int()
        if shadows.shape[1]:
            ordinary = candidates.columns.expand_as(where) if queries is None else queries
            extra = select_or_all(shadows, rows)
            beside, queries = shadow_visibility(ordinary, extra, length), torch.cat([ordinary, extra], 1)
            keys = None
        if order is not None:
            order = order if queries is None else order.at(queries)
            return Call(rows, queries, visible=order.visible_to(order, keys, self.config.window, beside))
        if beside is not None and queries is not None:
            return Call(rows, queries, visible=beside.visible(queries.shape[1]))
        return Call(rows, queries, visible=Visible(keys, count))
