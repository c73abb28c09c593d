"""One forward: the cache plans it, the model computes it, the head runs on the rows somebody needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from dllm.blocks.base import Blocks, Span
from dllm.cache.base import Cache, Plan, Session
from dllm.cache.guided import Guided
from dllm.canvas import Canvas, first_of, pack, select
from dllm.cost import Work
from dllm.eos.base import EndOfText
from dllm.models.transformer import Transformer
from dllm.runtime import Network
from dllm.samplers.base import Sampler
from dllm.scores import Ids, Lookup, Need, Propose, Sampling, Scores, spread


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
        propose = Propose(sampling, ids, wanted, model.triton)
        return Forward(model, cache, propose, needs, eos.shrinks, network or model)

    def start(self, canvas: Canvas) -> Session:
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
    ) -> tuple[Scores, Work]:
        """Scores of ``candidates`` [N] and the work it took.

        ``span`` [B] is where each row's blocks stand, ``owner`` [N] whose candidate each is (None: N = B).
        """
        current = candidates if owner is None else candidates.select(first_of(owner))
        plan = session.plan(current, span, upcoming)
        if owner is not None:
            plan, span = select(plan, owner), select(span, owner)
        wanted = union([need.mask(candidates, span) for need in self.needs])
        if "shadow" in self.propose.wanted:
            committed = span.block & candidates.valid & ~candidates.given & ~candidates.masked
            plan = replace(plan, shadows=pack(committed, candidates.columns))
        return self._score(candidates, span, plan, session, owner, wanted)

    def _score(
        self, canvas: Canvas, span: Span, plan: Plan, session: Session, owner: Tensor | None, wanted: Tensor
    ) -> tuple[Scores, Work]:
        length = len(canvas.columns)
        hidden, places = self._hidden(canvas, plan, session, owner)
        slots, known = [self._slot(canvas, place) for place in places], wanted
        for slot, place in zip(slots, places, strict=True):
            known = known if place is None or slot is None else known & (slot >= 0)
        rows = pack(known, canvas.columns, self._most(span, hidden.shape[1]))  # [N, r] targets
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
            scored = take(hidden, at)
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
        return scores, replace(session.count(), scored=guided * known.sum(1))

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
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Hidden rows [N or 2N, n, D], and where each column lies among them [N, L] (-1: nowhere; None: in order), for
        both halves under guidance: a session may compute other rows of one, or in another order."""
        rows, length = canvas.tokens.shape
        canvas = self._guided(canvas) if self.propose.sampling.guidance else canvas
        queries = session.begin(plan, canvas, owner)
        hidden, columns = self._run(canvas, session, queries, plan.shadows)
        if columns is None:
            return hidden, [None] * (len(hidden) // rows)
        extra = 0 if plan.shadows is None else plan.shadows.shape[1]
        columns = columns[:, : columns.shape[1] - extra]
        place = columns.new_full((len(columns), length + 1), -1)
        order = torch.arange(columns.shape[1], device=columns.device).expand_as(columns)
        return hidden, place.scatter(1, columns, order)[:, :length].split(rows)

    def _run(
        self, canvas: Canvas, session: Session, queries: Tensor | None, shadows: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The network on the queries [N, n] of every candidate, or, where the session folds them, of every row."""
        tokens = canvas.tokens
        if queries is not None:
            tokens = tokens.gather(1, queries.clamp(max=tokens.shape[1] - 1))
        if shadows is not None:  # the last rows are masks that stand in for committed tokens
            tokens[:, tokens.shape[1] - shadows.shape[1] :] = self.propose.ids.mask
        fold = session.fold
        if fold is None or queries is None:
            return self.network(tokens, canvas.positions, session, queries)
        first, side = fold.index[:, 0], [fold.rows(x).flatten(1) for x in (tokens, queries)]
        hidden, _ = self.network(side[0], canvas.positions[first], session, side[1])
        return fold.back(hidden), queries

    def _shadow(self, hidden: Tensor, shadows: Tensor, canvas: Canvas) -> Tensor:
        """Log-probability [N, x] of the canvas's token at each shadow's column, from the last x hidden rows."""
        logits = self.model.head(hidden[:, hidden.shape[1] - shadows.shape[1] :])
        token = canvas.tokens.gather(1, shadows.clamp(max=len(canvas.columns) - 1)).unsqueeze(-1)
        return logits.double().log_softmax(-1).gather(-1, token).squeeze(-1)

    def _logits(self, hidden: Tensor, at: Tensor, rows: int) -> Tensor:
        """Logits [N, r, V] of the hidden rows ``at`` [N or 2N, r]; guidance mixes the two halves."""
        weight = self.propose.sampling.guidance
        logits = self.model.logits(take(hidden, at))
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
