"""Extras of a few lines: noise, rows that wait, temperatures of a rule's own, extra queries, drafts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from dllm.cache.passes import Call, ForwardPass
from dllm.contract.canvas import Canvas, packed
from dllm.contract.process import Process
from dllm.contract.readouts import HeadInput, Shadow
from dllm.loop.extras.base import Extra, ScoredCandidates, Work
from dllm.loop.hidden import HiddenStates
from dllm.loop.proposals import scatter_columns
from dllm.models.packed_calls import Inputs
from dllm.models.transformer import Transformer
from dllm.samplers.base import Sampler


class Waiting(Extra):
    """Nothing is scored in rows that wait, so nothing can be decided there. They ran for nothing, so of their cost
    ``computed`` alone counts."""

    def before(self, work: Work) -> Work:
        blocks, plan = work.blocks, work.plan
        if not blocks.shapes.waits:
            return work
        active = blocks.active[:, None]
        if plan.forced is not None:
            plan = replace(plan, forced=plan.forced & active)
        return replace(work, wanted=work.wanted & active, plan=plan)

    def found(self, work: Work, hidden: HiddenStates, source: HeadInput, result: ScoredCandidates) -> ScoredCandidates:
        if not work.blocks.shapes.waits:
            return result
        cost, active = result.cost, work.blocks.active[:, None]
        asked = {name: getattr(cost, name) * active for name in ("queries", "keys", "refreshed")}
        return replace(result, cost=replace(cost, **asked))


@dataclass(frozen=True)
class Noise(Extra):
    """Undecided positions show noise, for a model that learned to undo it."""

    process: Process  # that noise

    def laid(self, canvas: Canvas) -> Canvas:
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


@dataclass(frozen=True)
class ShadowQueries(Extra):
    """Extra queries behind the others of each call: masks that stand in for committed tokens (``Shadow``)."""

    model: Transformer  # whose head reads them
    placeholder: int  # the id that a mask shows

    def before(self, work: Work) -> Work:
        shadows = packed(work.blocks.in_block & work.canvas.valid, work.canvas.columns)
        return replace(work, plan=replace(work.plan, shadows=shadows))

    def at_call(self, work: Work, forward: ForwardPass, call: Call, inputs: Inputs) -> Inputs:
        extra, tokens = work.plan.shadows.shape[1], inputs.tokens
        if extra:
            tokens[:, tokens.shape[1] - extra :] = self.placeholder
        return inputs

    def found(self, work: Work, hidden: HiddenStates, source: HeadInput, result: ScoredCandidates) -> ScoredCandidates:
        columns, scores, length = work.plan.shadows, result.scores, len(work.canvas.columns)
        laid = scatter_columns({"shadow": self._chances(work, hidden)}, columns, length)["shadow"]
        return replace(result, scores=replace(scores, readings={**scores.readings, Shadow(): laid}))

    def _chances(self, work: Work, hidden: HiddenStates) -> Tensor:
        """Log-probability [N, x] of the canvas's token at the column of each shadow."""
        columns, tokens = work.plan.shadows, work.canvas.tokens
        logits = self.model.head(hidden.last(columns.shape[1]))
        token = tokens.gather(1, columns.clamp(max=tokens.shape[1] - 1)).unsqueeze(-1)
        return logits.double().log_softmax(-1).gather(-1, token).squeeze(-1)


@dataclass(frozen=True)
class Drafts(Extra):
    """Drafts that the forward verifies, where the cache's plan says that they are: each is what was proposed there
    last."""

    placeholder: int  # the id that a mask shows

    def before(self, work: Work) -> Work:
        beside, rows = work.plan.beside, work.rows
        if beside is None:
            return work
        return work.on(beside.on(work.canvas, rows.owner.per_candidate(rows.ledger.proposal)))

    def at_call(self, work: Work, forward: ForwardPass, call: Call, inputs: Inputs) -> Inputs:
        if call.masks is None:
            return inputs
        return replace(inputs, tokens=inputs.tokens.masked_fill(call.masks, self.placeholder))

    def found(self, work: Work, hidden: HiddenStates, source: HeadInput, result: ScoredCandidates) -> ScoredCandidates:
        beside = work.plan.beside
        return result if beside is None else replace(result, scores=replace(result.scores, drafts=beside.drafts))
