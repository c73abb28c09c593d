"""One forward: the cache plans it, the model computes it, the head runs on the rows somebody needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from dllm.blocks.base import Blocks, Span
from dllm.cache.base import Cache, Call, Plan, Session
from dllm.cache.guided import Guided
from dllm.canvas import Canvas, first_of, of, pack, select
from dllm.eos.base import EndOfText
from dllm.models.transformer import Transformer
from dllm.record.cost import ForwardCost
from dllm.runtime.runtime import Network
from dllm.samplers.base import Sampler
from dllm.scores import Ids, Lookup, Need, Propose, Sampling, Scores, spread


@dataclass(frozen=True)
class Hidden:
    """The rows that one forward computed, call by call: which [b] of the ``count`` candidates (None: all), their hidden
    states [b, n, D], and where each column lies among them [b, L] (-1: nowhere; None: in order)."""

    calls: Sequence[tuple[Tensor | None, Tensor, Tensor | None]]
    count: int

    @property
    def width(self) -> int:
        """The most rows of a call."""
        return max(hidden.shape[1] for _, hidden, _ in self.calls)

    def place(self, columns: Tensor) -> Tensor | None:
        """Where each of the ``columns`` [L] lies in its row's call [N, L] (None: in order everywhere)."""
        rows, _, place = self.calls[0]
        if rows is None:
            return place
        out = columns.new_full((self.count, len(columns)), -1)
        for rows, _, place in self.calls:
            out[rows] = columns if place is None else place
        return out

    def take(self, at: Tensor) -> Tensor:
        """Hidden rows ``at`` [N, r] of each candidate: [N, r, D]."""
        rows, hidden, _ = self.calls[0]
        if rows is None:
            return take(hidden, at)
        out = hidden.new_zeros(*at.shape, hidden.shape[-1])
        for rows, hidden, _ in self.calls:
            out[rows] = take(hidden, at[rows].clamp(max=hidden.shape[1] - 1))
        return out

    def last(self, count: int) -> Tensor:
        """The last ``count`` rows of every call: [N, count, D]."""
        rows, hidden, _ = self.calls[0]
        if rows is None:
            return hidden[:, hidden.shape[1] - count :]
        out = hidden.new_zeros(self.count, count, hidden.shape[-1])
        for rows, hidden, _ in self.calls:
            out[rows] = hidden[:, hidden.shape[1] - count :]
        return out


@dataclass(frozen=True)
class Forward:
    """The network as the loop sees it. ``guidance`` w > 0: logits are u + (w + 1) (c - u), with u from a canvas whose
    given positions are masked (classifier-free guidance as in LLaDA); it doubles the rows of the same plan."""

    model: Transformer
    cache: Cache
    propose: Propose
    needs: tuple[Need, ...]
    shrinks: bool
    network: Network

    @staticmethod
    def of(
        model: Transformer, cache: Cache, ids: Ids, sampling: Sampling, sampler: Sampler, blocks: Blocks,
        eos: EndOfText, network: Network | None = None,
    ) -> Forward:  # fmt: skip
        """The forward that serves the needs of all parts. ``network`` runs the model (None: it runs as it is)."""
        needs = (*sampler.needs(), *blocks.needs(), *eos.needs())
        wanted: frozenset[str] = frozenset().union(*(need.statistics for need in needs))
        propose = Propose.of(sampling, ids, wanted, model)
        return Forward(model, cache, propose, needs, eos.shrinks, network or model)

    def start(self, canvas: Canvas) -> Session:
        self.propose.check(canvas)
        if not self.propose.sampling.guidance:
            return self.cache.start(canvas, self.model.config, self.shrinks)
        inner = self.cache.start(self._guided(canvas), self.model.config, self.shrinks)
        return Guided(inner, len(canvas.request))

    def __call__(
        self,
        candidates: Canvas,
        span: Span,
        session: Session,
        owner: Tensor | None = None,
        upcoming: Tensor | None = None,
    ) -> tuple[Scores, ForwardCost]:
        """Scores of ``candidates`` [N] and the work it took.

        ``span`` [B] is where each row's blocks stand, ``owner`` [N] whose candidate each is (None: N = B).
        """
        current = candidates if owner is None else candidates.select(first_of(owner))
        plan = session.plan(current, span, upcoming)
        if owner is not None:
            widths = None if plan.widths is None else tuple(plan.widths[row] for row in owner.tolist())
            plan, span = replace(select(plan, owner), widths=widths), select(span, owner)
        wanted = union([need.mask(candidates, span) for need in self.needs])
        if span.acts is not None:  # rows that wait: nothing is scored, so nothing can be decided
            wanted = wanted & span.acts[:, None]
            plan = plan if plan.only is None else replace(plan, only=plan.only & span.acts[:, None])
        if "shadow" in self.propose.wanted:
            committed = span.block & candidates.valid & ~candidates.given & ~candidates.masked
            plan = replace(plan, shadows=pack(committed, candidates.columns))
        return self._score(candidates, span, plan, session, owner, wanted)

    def _score(
        self, canvas: Canvas, span: Span, plan: Plan, session: Session, owner: Tensor | None, wanted: Tensor
    ) -> tuple[Scores, ForwardCost]:
        length = len(canvas.columns)
        hidden = self._hidden(canvas, plan, session, owner)
        place, halves = hidden.place(canvas.columns), hidden.count // len(canvas.request)
        places = [None] * halves if place is None else place.split(len(canvas.request))
        slots, known = [self._slot(canvas, place) for place in places], wanted
        for slot, place in zip(slots, places, strict=True):
            known = known if place is None or slot is None else known & (slot >= 0)
        rows = pack(known, canvas.columns, self._most(span, hidden.width))  # [N, r] targets
        inside = rows.clamp(max=length - 1)
        ats = [inside if slot is None else slot.gather(1, inside).clamp(min=0) for slot in slots]
        at = ats[0] if len(ats) == 1 else torch.cat(ats)
        keep_logits, logits = any(need.logits for need in self.needs), None
        few, weight, lookup = any(need.lookup for need in self.needs), self.model.head_weight, None
        if keep_logits or (few and weight is None) or self.propose.sampling.guidance or not self.propose.sampling.plain:
            logits = self._logits(hidden, at, len(rows))
            out = self.propose(logits, canvas, span.turn, inside)
            lookup = Lookup.stored(rows, logits, self.propose.triton) if few else None
        else:
            scored = hidden.take(at)
            out = self.propose.unstored(scored, self.model, canvas, inside)
            if few and weight is not None:
                lookup = self.propose.lookup(rows, scored, weight, self.model.config.logit_scale)
        stats = spread(out, rows, length)
        if plan.shadows is not None:
            stats |= spread({"shadow": self._shadow(hidden, plan.shadows, canvas)}, plan.shadows, length)
        scores = Scores(
            known=known, ready=known if plan.ready is None else known & plan.ready, only=plan.only,
            **stats, logits=logits if keep_logits else None, rows=rows if keep_logits else None, lookup=lookup,
        )  # fmt: skip
        guided = 2 if self.propose.sampling.guidance else 1
        return scores, replace(session.count().of(span.acts), scored=guided * known.sum(1))

    def _most(self, span: Span, queries: int) -> int | None:
        """The most rows that the head can be asked for, if the host knows it."""
        if span.sizes is None:
            return None
        return min(queries, span.sizes.width) if all(need.region == "block" for need in self.needs) else queries

    def _slot(self, canvas: Canvas, place: Tensor | None) -> Tensor | None:
        """Index of the hidden row that predicts each column [N, L], -1 if it was not computed (None: in order).

        With a prediction shift that is the row of the column before; a row's first position predicts itself.
        """
        if self.model.config.prediction_shift == 0:
            return place
        source = torch.maximum(canvas.columns - self.model.config.prediction_shift, canvas.first[:, None])
        return source if place is None else place.gather(1, source)

    def _hidden(
        self, canvas: Canvas, plan: Plan, session: Session, owner: Tensor | None
    ) -> Hidden:
        """The rows of all calls of the N candidates, or of 2N under guidance: a session may compute other rows of one
        half, or in another order."""
        canvas = self._guided(canvas) if self.propose.sampling.guidance else canvas
        extra = 0 if plan.shadows is None else plan.shadows.shape[1]
        calls = [self._call(canvas, session, call, extra) for call in session.begin(plan, canvas, owner)]
        return Hidden(calls, len(canvas.request))

    def _call(
        self, canvas: Canvas, session: Session, call: Call, extra: int
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """One call of the network; the last ``extra`` queries are masks that stand in for committed tokens."""
        session.use(call)
        hidden, columns = self._run(canvas, session, call, extra)
        if columns is None:
            return call.rows, hidden, None
        columns = columns[:, : columns.shape[1] - extra]
        place = columns.new_full((len(columns), len(canvas.columns) + 1), -1)
        order = torch.arange(columns.shape[1], device=columns.device).expand_as(columns)
        return call.rows, hidden, place.scatter(1, columns, order)[:, :-1]

    def _run(self, canvas: Canvas, session: Session, call: Call, extra: int) -> tuple[Tensor, Tensor | None]:
        """The network on the queries [b, n] of a call's candidates, or, where the session folds them, of every row."""
        tokens, positions, queries = of(canvas.tokens, call.rows), of(canvas.positions, call.rows), call.columns
        if queries is not None:
            tokens = tokens.gather(1, queries.clamp(max=tokens.shape[1] - 1))
        if extra:
            tokens[:, tokens.shape[1] - extra :] = self.propose.ids.mask
        fold = call.fold
        if fold is None or queries is None:
            return self.network(tokens, positions, session, queries)
        first, side = fold.index[:, 0], [fold.rows(x).flatten(1) for x in (tokens, queries)]
        hidden, _ = self.network(side[0], positions[first], session, side[1])
        return fold.back(hidden), queries

    def _shadow(self, hidden: Hidden, shadows: Tensor, canvas: Canvas) -> Tensor:
        """Log-probability [N, x] of the canvas's token at each shadow's column, from the last x hidden rows."""
        logits = self.model.head(hidden.last(shadows.shape[1]))
        token = canvas.tokens.gather(1, shadows.clamp(max=len(canvas.columns) - 1)).unsqueeze(-1)
        return logits.double().log_softmax(-1).gather(-1, token).squeeze(-1)

    def _logits(self, hidden: Hidden, at: Tensor, rows: int) -> Tensor:
        """Logits [N, r, V] of the hidden rows ``at`` [N or 2N, r]; guidance mixes the two halves."""
        weight = self.propose.sampling.guidance
        logits = self.model.logits(hidden.take(at))
        if not weight:
            return logits
        conditional, unconditional = logits.split(rows)
        return unconditional + (weight + 1) * (conditional - unconditional)

    def _guided(self, canvas: Canvas) -> Canvas:
        """The canvas twice: as it is, and with its given positions masked."""
        rows = torch.arange(len(canvas.request), device=canvas.request.device)
        both = canvas.select(torch.cat([rows, rows]))
        blank = both.given & (torch.arange(len(both.request), device=rows.device) >= len(rows))[:, None]
        return replace(both, tokens=both.tokens.masked_fill(blank, self.propose.ids.mask))


def take(hidden: Tensor, at: Tensor) -> Tensor:
    """Rows ``at`` [N, r] of hidden [N, n, D]."""
    return hidden.gather(1, at.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))


def union(masks: Sequence[Tensor]) -> Tensor:
    return reduce(torch.Tensor.__or__, masks)
