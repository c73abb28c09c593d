"""Classifier-free guidance with any policy: every request runs twice, as it is and with its given positions masked.

Both halves have keys and values of their own and follow the same plan. The policy sees an ordinary batch of 2 B rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm.common.rowwise import Owner, T, each_tensor, select
from dllm.contract import BlockState, ForwardCost, ForwardPlan, Scores, State
from dllm.contract.canvas import Canvas
from dllm.contract.shapes import HostView
from dllm.models.network.memory import Memory
from dllm.parts.cache.base import Session
from dllm.parts.cache.passes import Call, ForwardPass


@dataclass(frozen=True)
class GuidedPlan(ForwardPlan):
    """The plan of B rows."""

    halves: ForwardPlan  # [B, 2, ...] the inner session's plan of both halves


class GuidedSession(Session):
    """``inner`` was started on the doubled canvas of B rows. Arguments and results have B rows or N candidates,
    except a ``ForwardPass`` and the candidates of ``begin``, which have 2 N."""

    def __init__(self, inner: Session) -> None:
        self.inner, self.row_numbers, self.kept = inner, inner.row_numbers, inner.kept
        # What halves compute is no other request's, and their first forwards are not those of one row.
        self.policy, self.traits = inner.policy, inner.traits.but(shares=False, leads=False)

    @property
    def rows(self) -> int:
        return self.inner.rows // 2

    def remembers(self, canvas: Canvas) -> State:
        both = twice(torch.arange(self.rows, device=canvas.row_id.device), 0)
        return by_row(self.inner.remembers(canvas.select(both)))

    def plan(self, canvas: Canvas, blocks: BlockState, next_positions: Tensor, state: State) -> GuidedPlan:
        both, state = twice(torch.arange(self.rows, device=canvas.row_id.device), 0), by_half(state)
        inner_plan = self.inner.plan(canvas.select(both), select(blocks, both), next_positions[both], state)
        halves = by_row(inner_plan)
        first = each_tensor(lambda both: both[:, 0], halves)
        return GuidedPlan(  # if the halves choose different columns, both compute all of them
            halves.columns.any(1),
            first.committable,
            first.forced,
            first.shadows,
            first.keys,
            first.shapes,
            by_row(inner_plan.state),
            replace(halves, state={}),
        )

    def begin(self, plan: ForwardPlan, candidates: Canvas, owner: Owner) -> ForwardPass:
        assert isinstance(plan, GuidedPlan)
        both = twice(torch.arange(len(owner.row), device=owner.row.device), 0)
        twofold = Owner(twice(owner.row, owner.rows), 2 * owner.rows)
        inner = replace(
            by_half(plan.halves),
            columns=plan.columns[both],
            shadows=plan.shadows[both],
            shapes=plan.shapes.twice(),
            state=by_half(plan.state),
        )
        return self.inner.begin(inner, candidates, twofold)

    def graph_key(self) -> tuple[Hashable, ...]:
        return self.inner.graph_key()

    def apart(self) -> GuidedSession:
        return GuidedSession(self.inner.apart())

    def max_queries(self, host_views: Sequence[HostView], width: int) -> tuple[int, ...]:
        return self.inner.max_queries(host_views, width)

    def counts(self, canvas: Canvas, blocks: BlockState, next_positions: Tensor, state: State) -> list[Tensor]:
        both, state = twice(torch.arange(self.rows, device=canvas.row_id.device), 0), by_half(state)
        inner_counts = self.inner.counts(canvas.select(both), select(blocks, both), next_positions[both], state)
        return [by_row(count).amax(1) for count in inner_counts]

    def most(self, host_views: Sequence[HostView]) -> tuple[int, ...]:
        return self.inner.most(host_views)

    def widths(self, plan: ForwardPlan) -> list[Tensor]:
        assert isinstance(plan, GuidedPlan)
        both = twice(torch.arange(self.rows, device=plan.columns.device), 0)
        inner = replace(by_half(plan.halves), columns=plan.columns[both], state=by_half(plan.state))
        return [by_row(width).amax(1) for width in self.inner.widths(inner)]

    def memory(self, forward: ForwardPass, call: Call) -> Memory:
        return self.inner.memory(forward, call)

    def after_scores(self, state: State, scores: Scores) -> State:
        both = twice(torch.arange(self.rows, device=scores.scored.device), 0)
        scores_of_halves = select(replace(scores, readings={}, repropose=None), both)
        return by_row(self.inner.after_scores(by_half(state), scores_of_halves))

    def cost(self, forward: ForwardPass, scored_rows: Tensor) -> ForwardCost:
        return halves(self.inner.cost(forward, torch.cat([scored_rows, scored_rows])))

    def keep(self, forward: ForwardPass, candidates: Tensor, state: State) -> State:
        return by_row(self.inner.keep(forward, twice(candidates, len(forward.owner.row) // 2), by_half(state)))

    def select(self, rows: Tensor) -> GuidedSession:
        return GuidedSession(self.inner.select(twice(rows, self.rows)))

    def join(self, fresh: GuidedSession) -> GuidedSession:
        mine, theirs = self.rows, fresh.rows
        blocks = torch.arange(2 * (mine + theirs)).split([mine, mine, theirs, theirs])
        order = torch.cat([blocks[0], blocks[2], blocks[1], blocks[3]])  # all rows as they are, then all masked
        return GuidedSession(self.inner.join(fresh.inner).select(order))


def twice(rows: Tensor, offset: int) -> Tensor:
    """Row numbers, then those of the second half, which starts at ``offset``."""
    return torch.cat([rows, rows + offset])


def by_row(state: T) -> T:
    """What belongs to B rows [B, 2, ...] from what belongs to both halves [2 B, ...]."""
    return each_tensor(lambda both: both.unflatten(0, (2, -1)).transpose(0, 1), state)


def by_half(state: T) -> T:
    """What belongs to both halves [2 B, ...] from what belongs to B rows [B, 2, ...]."""
    return each_tensor(lambda rows: rows.transpose(0, 1).flatten(0, 1), state)


def halves(cost: ForwardCost) -> ForwardCost:
    """The cost of N candidates from that of 2 N, whose second half repeats the first: rows are summed."""
    both = each_tensor(lambda part: part.unflatten(0, (2, -1)).sum(0), cost)
    return replace(both, keys=cost.keys.unflatten(0, (2, -1)).amax(0), copies=2 * cost.copies)
