"""Rows that wait: they are in the batch, and decide nothing."""

from __future__ import annotations

from dataclasses import replace

from dllm.contract.readouts import HeadInput
from dllm.loop.extras.base import Extra, ScoredCandidates, Work
from dllm.loop.hidden import HiddenStates


class Waiting(Extra):
    """Nothing is scored in rows that wait, so nothing can be decided there. They ran for nothing, so of their cost
    ``computed`` alone counts."""

    leads = True

    def before(self, work: Work) -> Work:
        blocks, plan = work.blocks, work.plan
        if not blocks.shapes.waits:
            return work
        active = blocks.active[:, None]
        if plan.forced is not None:
            plan = replace(plan, forced=plan.forced & active)
        return replace(work, scored=work.scored & active, plan=plan)

    def finish(self, work: Work, hidden: HiddenStates, source: HeadInput, result: ScoredCandidates) -> ScoredCandidates:
        if not work.blocks.shapes.waits:
            return result
        cost, active = result.cost, work.blocks.active[:, None]
        own_work = {name: getattr(cost, name) * active for name in ("queries", "keys", "refreshed")}
        return replace(result, cost=replace(cost, **own_work))
