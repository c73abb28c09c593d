"""The head of one forward: which columns are scored, and what is proposed there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm.contract import ForwardCost, Scores
from dllm.contract.canvas import Canvas, packed
from dllm.contract.readouts import Lookup
from dllm.loop.extras.base import Extra, ScoredCandidates, Work
from dllm.loop.hidden import CallStates, HiddenStates
from dllm.loop.proposals import LogitReproposer, Proposer, lookup_stored, scatter_columns
from dllm.loop.sliced_draws import drawn_statistics
from dllm.models.config import ModelConfig
from dllm.models.network.transformer import Transformer
from dllm.parts.cache.passes import ForwardPass


@dataclass(frozen=True)
class Aim:
    """Which positions of N candidates the head runs for, and on what."""

    hidden: HiddenStates  # all that the forward computed
    scored: Tensor  # [N, L] which positions are scored
    columns: Tensor  # [N, n] their columns, ascending (L: no column)
    inside: Tensor  # [N, n] the same, L - 1 for no column
    states: Tensor  # [N, n, D] hidden states that predict them; of [2 N] canvases under guidance

    @staticmethod
    def of(work: Work, calls: Sequence[CallStates], config: ModelConfig, in_blocks: bool) -> Aim:
        """From the ``calls`` of a forward. in_blocks: every position to score is in an open block."""
        canvas, scored = work.canvas, work.scored
        hidden = HiddenStates.of(calls, work.shown, work.plan.shadows.shape[1]).led(work.plan.shapes.leaders)
        slot = slots(canvas, work, hidden.place, config)
        if slot is not None and hidden.place is not None:
            for is_computed in (slot >= 0).split(len(scored)):  # the halves of guidance may be in other orders
                scored = scored & is_computed
        columns = packed(scored, canvas.columns, work.blocks.shapes.max_per_row(scored, hidden.width, in_blocks))
        inside = columns.clamp(max=len(canvas.columns) - 1)
        copies = len(hidden.first) // len(scored)
        at = inside if copies == 1 else inside.repeat(copies, 1)
        states = hidden.take(at if slot is None else slot.gather(1, at).clamp(min=0))
        return Aim(hidden, scored, columns, inside, states)

    def followed_by(self, again: Aim) -> Aim:
        """The same with the states of a second forward after its own."""
        return replace(self, states=torch.cat([self.states, again.states]))


@dataclass(frozen=True)
class ScoredHead:
    """What the head says of the scored columns of N candidates; readouts are computed from it (``HeadInput``)."""

    model: Transformer  # whose head it is
    proposer: Proposer  # proposes and computes statistics
    work: Work  # what the forward was about to do
    run: ForwardPass  # the forward
    extras: Sequence[Extra]  # of this forward
    aim: Aim  # which positions are scored, and the states that predict them
    logits: Tensor | None  # [N, n, V] all logits, -inf for banned ids (None: nothing reads them)
    statistics: dict[str, Tensor]  # [N, n] of the proposals, by name

    aim_of = staticmethod(Aim.of)

    @staticmethod
    def run_on(
        model: Transformer, proposer: Proposer, work: Work, run: ForwardPass, extras: Sequence[Extra], aim: Aim
    ) -> ScoredHead:
        """Run the head on the states of the ``aim``: from stored logits where the sampling or an extra reads these,
        else chunk by chunk without storing any. Ranks gather logits only where their own do not suffice."""
        states, canvas, blocks, logits = aim.states, work.canvas, work.blocks, None
        reads_logits = proposer.reads_logits
        shared = reads_logits and model.ranks.size > 1 and proposer.sampling.top_p in (None, 1.0)
        stored = any(extra.stores_logits or (reads_logits and extra.looks_up) for extra in extras)
        if stored or (reads_logits and not shared):
            logits = model.logits(states)
            for extra in extras:
                logits = extra.mix(logits)
            statistics = proposer(logits, canvas, blocks.turn, aim.inside)
        elif shared:
            statistics = drawn_statistics(proposer, states, model.head_slice, canvas, blocks.turn, aim.inside)
        else:
            entries = blocks.shapes.entries(aim.columns, len(canvas.columns))
            statistics = proposer.fused(states, model, canvas, aim.inside, entries)
        return ScoredHead(model, proposer, work, run, extras, aim, logits, statistics)

    @property
    def columns(self) -> Tensor:
        return self.aim.columns

    @property
    def states(self) -> Tensor:
        return self.aim.states

    @property
    def canvas(self) -> Canvas:
        return self.work.canvas

    def hidden(self, layer: int | None) -> Tensor:
        """Hidden states [N, n, D] as they leave a layer (None: after the last norm)."""
        if layer is None:
            return self.states[: len(self.columns)]
        index = layer % self.model.config.layers
        layer_states = next(states for extra in self.extras if (states := extra.states(index, self.work)) is not None)
        slot, inside = slots(self.canvas, self.work, layer_states.place, self.model.config), self.aim.inside
        at = inside if slot is None else slot[: len(inside)].gather(1, inside)
        return layer_states.take(at.clamp(min=0)) * (at >= 0)[..., None]

    def head(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden)

    def lookup(self) -> Lookup:
        weight, columns = self.model.local_head_weight, self.columns
        if self.logits is not None or weight is None:
            assert self.logits is not None, "LogitLookup has them stored"
            return lookup_stored(self.logits, columns, self.proposer.triton)
        if self.model.config.ranks.size > 1:
            return self.proposer.sliced_lookup(columns, self.states, self.model.head_slice)
        return self.proposer.lookup(columns, self.states, weight, self.model.config.logit_scale)

    def result(self, offers: bool) -> ScoredCandidates:
        """What the forward says, before its extras. offers: its logits may be read until the next turn."""
        work, rows, run, length = self.work, self.work.rows, self.run, len(self.canvas.columns)
        statistics = scatter_columns(self.statistics, self.columns, length)
        token, confidence = statistics.pop("token"), statistics.pop("confidence")
        again = self.reproposer() if offers or not rows.constraints.free else None
        scored = self.aim.scored
        committable = scored & work.plan.committable
        scores = Scores(scored, token, confidence, committable, statistics, repropose=again)
        return ScoredCandidates(
            canvas=rows.candidates,
            owner=rows.owner,
            scores=scores,
            forced=work.plan.forced,
            corrected=rows.candidates.no_positions,
            run=run,
            cost=self._cost(),
            cache_state=work.plan.state,
            carried=rows.carried,
        )

    def _cost(self) -> ForwardCost:
        """What the forward computed; a row that is led computed nothing."""
        cost, leaders = self.work.rows.session.cost(self.run, self.aim.scored.sum(1)), self.work.plan.shapes.leaders
        if not leaders:
            return cost
        ran = torch.tensor([[row == leader] for row, leader in enumerate(leaders)], device=cost.queries.device)
        own_counts = {
            name: getattr(cost, name) * ran for name in ("queries", "keys", "refreshed", "computed", "values")
        }
        return replace(cost, **own_counts)

    def reproposer(self) -> LogitReproposer:
        """Proposes again at a few of these columns."""
        from_logits, model = self.logits is not None, self.model
        source, find = (self.logits, same_logits) if from_logits else (self.states, model.logits)
        assert source is not None
        turn = self.work.blocks.turn
        return LogitReproposer(self.proposer, find, source, self.columns, self.canvas, turn, model.config.vocab)


def slots(canvas: Canvas, work: Work, place: Tensor | None, config: ModelConfig) -> Tensor | None:
    """Which state predicts each column [N, L], or [2 N, L] under guidance; -1: not computed; None: in order.

    With a prediction shift it is that of the column before; the first position of a canvas row predicts itself.
    ``place``: where each column is among the states of its candidate.
    """
    source = None if work.plan.beside is None else work.plan.beside.sources
    if source is None:
        if config.prediction_shift == 0 and config.seed_shift is None:
            return place
        source = config.sources(canvas.masked & canvas.valid, canvas.start)
    copies = len(work.shown.row_id) // len(source)
    source = source if copies == 1 else source.repeat(copies, 1)
    return source if place is None else place.gather(1, source)


def same_logits(logits: Tensor) -> Tensor:
    return logits
