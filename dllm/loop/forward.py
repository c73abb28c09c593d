"""One forward: the cache plans it, the network computes it, and the head scores the positions that parts need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from dllm.cache.base import Cache, Session
from dllm.cache.guided import Guided
from dllm.cache.passes import Call, ForwardPass
from dllm.common.rowwise import select_or_all
from dllm.compose.fitted import Parts
from dllm.contract import BlockState, ForwardCost, ForwardPlan, Need, Scores
from dllm.contract.attention_weights import AttentionWeights
from dllm.contract.canvas import Canvas, packed
from dllm.contract.logits import Logits, Lookup
from dllm.contract.process import Process, process_of
from dllm.contract.shared_values import NOTHING_SHARED, Shared
from dllm.errors import name_of
from dllm.loop.carried import by_block, conditioning, expected
from dllm.loop.probe import AttentionCapture
from dllm.loop.proposals import LogitReproposer, Proposer, lookup_stored, scatter_columns
from dllm.loop.rows import Rows
from dllm.models.ids import Ids
from dllm.models.memory import Memory
from dllm.models.packed_calls import Inputs, run_together
from dllm.models.transformer import Transformer
from dllm.runtime.runtime import Network


@dataclass(frozen=True)
class HiddenStates:
    """The rows that one forward of N candidates computed."""

    rows: Tensor  # [T, D] hidden states of all query tokens, candidate after candidate
    first: Tensor  # [N] where a candidate's begin
    size: Tensor  # [N] how many a candidate has
    place: Tensor | None  # [N, L] where each column lies among its candidate's (-1: nowhere; None: in order)
    width: int  # the most that any candidate has

    @staticmethod
    def of(calls: Sequence[tuple[Tensor | None, Tensor, Tensor | None]], columns: Tensor, count: int) -> HiddenStates:
        """From each call: which of ``count`` candidates it ran [b] (None: all), hidden states [b, n, D], place [b, L].
        ``columns`` [L]: 0 to L - 1."""
        width, everyone = max(hidden.shape[1] for _, hidden, _ in calls), torch.arange(count, device=columns.device)
        candidates, hidden, place = calls[0]
        if candidates is None:
            return HiddenStates(hidden.flatten(0, 1), everyone * width, torch.full_like(everyone, width), place, width)
        first, size = torch.zeros_like(everyone), torch.full_like(everyone, width)
        places, begin = columns.new_full((count, len(columns)), -1), 0
        for candidates, hidden, place in calls:
            assert candidates is not None, "only a single call runs all of them"
            rows, n = hidden.shape[:2]
            first[candidates] = begin + n * everyone[:rows]
            size = size.index_fill(0, candidates, n)  # a number assigned by an index comes from the host
            places[candidates] = columns if place is None else place
            begin += rows * n
        return HiddenStates(torch.cat([hidden.flatten(0, 1) for _, hidden, _ in calls]), first, size, places, width)

    def take(self, at: Tensor) -> Tensor:
        """Hidden rows ``at`` [N, r] of each candidate: [N, r, D]."""
        return self.rows[self.first[:, None] + at]

    def last(self, count: int) -> Tensor:
        """The last ``count`` rows of every candidate: [N, count, D]."""
        return self.take((self.size - count)[:, None] + torch.arange(count, device=self.size.device))


@dataclass(frozen=True)
class HeadOutput:
    """What the head said of columns [N, r]."""

    statistics: dict[str, Tensor]  # [N, r] of the proposals, by name
    source: Tensor  # what it keeps of each column, so that a constrained turn can propose anew
    find: Callable[[Tensor], Tensor]  # makes logits [..., V] of parts of ``source``
    logits: Logits | None  # reads logits of columns, where a part asked for them
    lookup: Lookup | None  # reads the probability of a token at columns, where a part asked for it
    # [N, r, D] what the next forward is given of each column (None: nothing); papers: soft embeddings
    soft: Tensor | None = None


@dataclass(frozen=True)
class Forward:
    """The network as the loop sees it. With guidance w > 0 logits are u + (w + 1) (c - u), where u comes from a canvas
    whose given positions are masked (classifier-free guidance as in LLaDA); that doubles the rows of the same plan."""

    model: Transformer  # the network's weights and description
    cache: Cache  # plans which columns are computed and keeps keys and values
    proposer: Proposer  # makes a token and its statistics of logits
    needs: tuple[Need, ...]  # what sampler, blocks, end-of-text policy and cache want to know of a forward
    shrinks: bool  # the end-of-text policy may shorten answers
    network: Network  # what runs the model: itself, or its recordings
    shared: Shared = NOTHING_SHARED  # what the sampler gives to all rows, on the model's device
    offers: bool = False  # its logits may be read until the next turn, also where no row is under a constraint

    @staticmethod
    def of(model: Transformer, ids: Ids, parts: Parts, network: Network | None = None) -> Forward:
        """The forward that serves the needs of all parts. network: what runs the model (None: the model itself)."""
        cache, eos = parts.cache, parts.eos
        needs = (*parts.sampler.needs(), *parts.blocks.needs(), *eos.needs(), *cache.needs())
        wanted: frozenset[str] = frozenset().union(*(need.statistics for need in needs))
        proposer = Proposer.of(parts.sampling, ids, wanted, model)
        shared = Shared.of(parts.sampler.shared(), model.device, f"sampler={name_of(parts.sampler)}")
        return Forward(model, cache, proposer, needs, eos.traits.shrinks, network or model, shared)

    def start(self, canvas: Canvas) -> Session:
        """The cache's session for the rows of ``canvas`` [B]."""
        guided = bool(self.proposer.sampling.guidance)
        session = self.cache.start(self._guided(canvas) if guided else canvas, self.model.config, self.shrinks)
        session.row_numbers.streams = self.streams
        return Guided(session, len(canvas.row_id)) if guided else session

    @property
    def streams(self) -> bool:
        """Whether the calls of a forward run as one stream. A network that is compiled or recorded for the shapes of
        one call runs them one after the other: pairs of shapes would multiply what is recorded."""
        return self.network is self.model and self.model.streams

    @property
    def ids(self) -> Ids:
        """The model's special ids."""
        return self.proposer.ids

    @property
    def process(self) -> Process:
        """What undecided positions show."""
        return process_of(self.model.config)

    @property
    def vocab(self) -> int:
        """How many ids the model has."""
        return self.model.config.vocab

    def __call__(self, rows: Rows) -> tuple[Scores, ForwardPlan, ForwardPass, ForwardCost, Tensor]:
        """Run a forward of the candidates [N] of ``rows``. Returns their scores, the plan [N], the pass, its cost, and
        what the rows hand to the next one [B, C, D]."""
        owner, canvas = rows.owner, rows.candidates
        plan = rows.session.plan(owner.per_row(canvas), rows.blocks, rows.next_positions, rows.remembered)
        plan = owner.per_candidate(plan)
        blocks = owner.per_candidate(rows.blocks)
        wanted = reduce(Tensor.__or__, (need.mask(canvas, blocks) for need in self.needs))
        if not self.model.config.attention.everywhere:  # a mask that this forward does not predict has no score
            wanted = wanted & (plan.committable | ~canvas.masked)
        if blocks.shapes.waits:  # nothing is scored in rows that wait, so nothing can be decided
            wanted = wanted & blocks.active[:, None]
            if plan.forced is not None:
                plan = replace(plan, forced=plan.forced & blocks.active[:, None])
        if "shadow" in self.proposer.wanted:
            plan = replace(plan, shadows=packed(blocks.in_block & canvas.valid, canvas.columns))
        if plan.beside is not None:  # a draft is what was proposed there last
            canvas = plan.beside.on(canvas, owner.per_candidate(rows.ledger.proposal))
        asked = next((need.attention for need in self.needs if need.attention is not None), None)
        probe = None if asked is None else AttentionCapture.of(asked, self.model.config, canvas, blocks)
        forward, hidden, attention = self._hidden(rows, canvas, plan, probe)
        scores, carried = self._score(canvas, blocks, plan, hidden, wanted, rows)
        drafts = None if plan.beside is None else plan.beside.drafts
        scores = replace(scores, attention=attention, drafts=drafts)
        cost = rows.session.cost(forward, scores.scored.sum(1))
        return scores, plan, forward, self._cost(cost, blocks), carried

    def _cost(self, cost: ForwardCost, blocks: BlockState) -> ForwardCost:
        """The cost, in which rows that wait count in ``computed`` only: they ran, for nothing."""
        if not blocks.shapes.waits:
            return cost
        asked = {name: getattr(cost, name) * blocks.active[:, None] for name in ("queries", "keys", "refreshed")}
        return replace(cost, **asked)

    def _score(
        self,
        canvas: Canvas,
        blocks: BlockState,
        plan: ForwardPlan,
        hidden: HiddenStates,
        wanted: Tensor,
        rows: Rows,
    ) -> tuple[Scores, Tensor]:
        scored, columns, at = self._columns(canvas, blocks, plan, hidden, wanted)
        read, length = self._read(canvas, blocks, hidden, columns, at), len(canvas.columns)
        again = None
        if self.offers or not rows.constraints.free:
            vocab = self.model.config.vocab
            again = LogitReproposer(self.proposer, read.find, read.source, columns, canvas, blocks.turn, vocab)
        statistics = scatter_columns(read.statistics, columns, length)
        token, confidence = statistics.pop("token"), statistics.pop("confidence")
        if "shadow" in self.proposer.wanted:
            statistics |= scatter_columns({"shadow": self._shadow(hidden, plan.shadows, canvas)}, plan.shadows, length)
        committable = scored & plan.committable
        scores = Scores(scored, token, confidence, committable, statistics, read.logits, read.lookup, again)
        if read.soft is None:
            return scores, rows.carried
        return scores, blocks.shapes.update(blocks.active, by_block(read.soft, columns, blocks, rows.carried),
                                            rows.carried)  # fmt: skip

    def _columns(
        self, canvas: Canvas, blocks: BlockState, plan: ForwardPlan, hidden: HiddenStates, wanted: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Which of the ``wanted`` [N, L] are scored [N, L] (those that were computed), their columns [N, r], and the
        hidden rows that predict them [N or 2N, r]."""
        sources = None if plan.beside is None else plan.beside.sources
        place, halves = hidden.place, len(hidden.first) // len(canvas.row_id)
        places = [None] * halves if place is None else place.split(len(canvas.row_id))
        slots, scored = [self._slot(canvas, place, sources) for place in places], wanted
        for slot, place in zip(slots, places, strict=True):
            scored = scored if place is None or slot is None else scored & (slot >= 0)
        in_blocks = all(need.region == "block" for need in self.needs)
        columns = packed(scored, canvas.columns, blocks.shapes.max_per_row(scored, hidden.width, in_blocks))
        inside = columns.clamp(max=len(canvas.columns) - 1)
        ats = [inside if slot is None else slot.gather(1, inside).clamp(min=0) for slot in slots]
        return scored, columns, ats[0] if len(ats) == 1 else torch.cat(ats)

    def _read(
        self, canvas: Canvas, blocks: BlockState, hidden: HiddenStates, columns: Tensor, at: Tensor
    ) -> HeadOutput:
        """What is proposed at ``columns`` [N, r], from logits where a part or the sampling needs them, else from the
        hidden rows ``at`` [N or 2N, r] without storing any."""
        inside, length = columns.clamp(max=len(canvas.columns) - 1), len(canvas.columns)
        keep, few = any(need.logits for need in self.needs), any(need.lookup for need in self.needs)
        weight, sampling = self.model.head_weight, self.proposer.sampling
        in_rows = sampling.guidance or sampling.min_tokens or not sampling.plain  # rests on each row's place or noise
        if keep or (few and weight is None) or in_rows:
            logits = Logits(self._logits(hidden, at, len(columns)), columns)
            found = self.proposer(logits.values, canvas, blocks.turn, inside)
            lookup = lookup_stored(logits, self.proposer.triton) if few else None
            soft = expected(self.model, logits.values, canvas.temperature) if self.model.config.carries else None
            return HeadOutput(found, logits.values, lambda found: found, logits if keep else None, lookup, soft)
        rows, lookup = hidden.take(at), None
        found = self.proposer.fused(rows, self.model, canvas, inside, blocks.shapes.nonzero(columns < length))
        if few and weight is not None:
            lookup = self.proposer.lookup(columns, rows, weight, self.model.config.logit_scale)
        return HeadOutput(found, rows, self.model.logits, None, lookup)

    def _slot(self, canvas: Canvas, place: Tensor | None, source: Tensor | None) -> Tensor | None:
        """Index of the hidden row that predicts each column [N, L]; -1: not computed; None: in order.

        With a prediction shift it is the one of the column before; the first position of a canvas row predicts itself.
        source: where the plan says which row that is (``InPlace``).
        """
        config = self.model.config
        if source is None:
            if config.prediction_shift == 0 and config.seed_shift is None:
                return place
            source = config.sources(canvas.masked & canvas.valid, canvas.start)
        return source if place is None else place.gather(1, source)

    def _hidden(
        self, rows: Rows, canvas: Canvas, plan: ForwardPlan, probe: AttentionCapture | None
    ) -> tuple[ForwardPass, HiddenStates, AttentionWeights | None]:
        """Run all calls, for the N candidates, or for 2 N under guidance. The session may compute the columns of the
        two halves in different orders. ``probe`` reads along."""
        canvas = self._guided(canvas) if self.proposer.sampling.guidance else canvas
        forward = rows.session.begin(plan, canvas, rows.owner)
        extra, memories = plan.shadows.shape[1], [rows.session.memory(forward, call) for call in forward.calls]
        watches = [] if probe is None else probe.watch(forward, memories)
        found = self._run(
            [
                self._inputs(canvas, call, memory, extra, rows)
                for call, memory in zip(forward.calls, memories, strict=True)
            ]
        )
        calls = [self._found(call, *one, len(canvas.columns), extra)
                 for call, one in zip(forward.calls, found, strict=True)]  # fmt: skip
        weights = None if probe is None else probe.weights(forward, watches)
        return forward, HiddenStates.of(calls, canvas.columns, len(canvas.row_id)), weights

    def _inputs(self, canvas: Canvas, call: Call, memory: Memory, extra: int, rows: Rows) -> Inputs:
        """What the network takes for the queries [b, n] of a call's candidates, or of their rows if these lie side by
        side. The last ``extra`` queries are masks that stand in for committed tokens."""
        tokens, positions = (
            select_or_all(canvas.tokens, call.candidates),
            select_or_all(canvas.positions, call.candidates),
        )
        queries, beside = call.columns, call.side_by_side
        if queries is not None:
            tokens = tokens.gather(1, queries.clamp(max=tokens.shape[1] - 1))
        if extra:
            tokens[:, tokens.shape[1] - extra :] = self.ids.placeholder
        if call.masks is not None:
            tokens = tokens.masked_fill(call.masks, self.ids.placeholder)
        if beside is None or queries is None:
            given = conditioning(self.model, canvas, call, rows) if self.model.config.carries else None
            return Inputs(tokens, positions, memory, queries, given)
        return Inputs(beside.pack(tokens), positions[beside.candidates[:, 0]], memory, beside.pack(queries))

    def _run(self, calls: Sequence[Inputs]) -> list[tuple[Tensor, Tensor | None]]:
        """Hidden rows of each call and their columns."""
        if len(calls) > 1 and self.streams:
            return [(hidden, call.columns) for hidden, call in zip(run_together(self.model, calls), calls, strict=True)]
        return [self.network(call.tokens, call.positions, call.memory, call.columns, **call.more) for call in calls]

    def _found(
        self, call: Call, hidden: Tensor, columns: Tensor | None, length: int, extra: int
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """What ``HiddenStates`` takes of a call, of which ``columns`` ran (more than planned if its memory widened
        it)."""
        if call.side_by_side is not None:
            hidden, columns = call.side_by_side.unpack(hidden), call.columns
        if columns is None:
            return call.candidates, hidden, None
        columns = columns[:, : columns.shape[1] - extra]
        if call.masks is not None:
            columns = columns.masked_fill(~call.masks, length)
        place = columns.new_full((len(columns), length + 1), -1)
        order = torch.arange(columns.shape[1], device=columns.device).expand_as(columns)
        return call.candidates, hidden, place.scatter(1, columns, order)[:, :-1]

    def _shadow(self, hidden: HiddenStates, shadows: Tensor, canvas: Canvas) -> Tensor:
        """Log-probability [N, x] of the canvas's token at the column of each shadow, from the last x hidden rows."""
        logits = self.model.head(hidden.last(shadows.shape[1]))
        token = canvas.tokens.gather(1, shadows.clamp(max=len(canvas.columns) - 1)).unsqueeze(-1)
        return logits.double().log_softmax(-1).gather(-1, token).squeeze(-1)

    def _logits(self, hidden: HiddenStates, at: Tensor, rows: int) -> Tensor:
        """Logits [N, r, V] of the hidden rows ``at`` [N or 2N, r]; guidance mixes the two halves."""
        weight = self.proposer.sampling.guidance
        logits = self.model.logits(hidden.take(at))
        if not weight:
            return logits
        conditional, unconditional = logits.split(rows)
        return unconditional + (weight + 1) * (conditional - unconditional)

    def _guided(self, canvas: Canvas) -> Canvas:
        """The canvas twice: as it is, and with its given positions masked."""
        rows = torch.arange(len(canvas.row_id), device=canvas.row_id.device)
        both = canvas.select(torch.cat([rows, rows]))
        blank = both.given & (torch.arange(len(both.row_id), device=rows.device) >= len(rows))[:, None]
        return replace(both, tokens=both.tokens.masked_fill(blank, self.ids.placeholder))
