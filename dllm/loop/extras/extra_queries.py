"""Queries of a forward that the canvas does not have: shadows of committed positions, and drafts to be verified."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from dllm.contract.canvas import packed
from dllm.contract.readouts import HeadInput, Shadow
from dllm.loop.extras.base import Extra, ScoredCandidates, Work
from dllm.loop.hidden import HiddenStates
from dllm.loop.proposals import scatter_columns
from dllm.models.network.packed_calls import Inputs
from dllm.models.network.transformer import Transformer
from dllm.parts.cache.passes import Call, ForwardPass


@dataclass(frozen=True)
class ShadowQueries(Extra):
    """Extra queries after the others of each call: masks that stand in for committed tokens (``Shadow``)."""

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

    def finish(self, work: Work, hidden: HiddenStates, source: HeadInput, result: ScoredCandidates) -> ScoredCandidates:
        columns, scores, length = work.plan.shadows, result.scores, len(work.canvas.columns)
        chances = scatter_columns({"shadow": self._chances(work, hidden)}, columns, length)["shadow"]
        return replace(result, scores=replace(scores, readings={**scores.readings, Shadow(): chances}))

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

    def finish(self, work: Work, hidden: HiddenStates, source: HeadInput, result: ScoredCandidates) -> ScoredCandidates:
        beside = work.plan.beside
        return result if beside is None else replace(result, scores=replace(result.scores, drafts=beside.drafts))
