"""What a forward must know of its rows besides their canvases: which wait, how long they are, and what those of a model
of noise show."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dllm.common.rowwise import select_or_all
from dllm.contract.canvas import Canvas
from dllm.contract.process import Uniform
from dllm.contract.readouts import HeadInput
from dllm.loop.extras.base import Extra, ScoredCandidates, Work
from dllm.loop.hidden import HiddenStates
from dllm.models.network.packed_calls import Inputs
from dllm.parts.cache.passes import Call, ForwardPass
from dllm.parts.samplers.base import Sampler


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


@dataclass(frozen=True)
class RowLengths(Extra):
    """How long rows are in all, prompt and answer, for rotary embeddings that depend on it (``Rotary.by_length``).
    Every forward of a row gets the length that the row began with: its kept keys are rotated already, so its
    frequencies must not change when an end of text cuts it short."""

    def at_call(self, work: Work, forward: ForwardPass, call: Call, inputs: Inputs) -> Inputs:
        return replace(inputs, totals=select_or_all(work.shown.initial_end, call.candidates)[:, None])


@dataclass(frozen=True)
class Noise(Extra):
    """Undecided positions show noise, for a model that learned to undo it."""

    process: Uniform  # that noise

    def first_canvas(self, canvas: Canvas) -> Canvas:
        return self.process.fill(canvas)


@dataclass(frozen=True)
class RuleTemperature(Extra):
    """A rule that renoises sets the temperature of every forward itself."""

    sampler: Sampler  # that rule

    def before(self, work: Work) -> Work:
        temperature = self.sampler.turn_temperature(work.rows.blocks, work.rows.state)
        if temperature is None:
            return work
        candidates = replace(work.rows.candidates, temperature=temperature)
        return replace(work, rows=replace(work.rows, candidates=candidates)).on(candidates)
