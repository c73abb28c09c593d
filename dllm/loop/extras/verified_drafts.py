"""Drafts that a forward verifies."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dllm.contract.readouts import HeadInput
from dllm.loop.extras.base import Extra, ScoredCandidates, Work
from dllm.loop.hidden import HiddenStates
from dllm.models.network.packed_calls import Inputs
from dllm.parts.cache.passes import Call, ForwardPass


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

    def finish(self, work: Work, hidden: HiddenStates, source: HeadInput, result: ScoredCandidates) -> ScoredCandidates:
        beside = work.plan.beside
        return result if beside is None else replace(result, scores=replace(result.scores, drafts=beside.drafts))
