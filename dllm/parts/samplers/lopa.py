"""Look ahead over orders of filling, and go on where the model is surest of the rest (LoPA, arXiv 2512.16229)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.common.errors import in_choices, in_range
from dllm.common.ranking import argmax_mask, rank
from dllm.common.rowwise import Owner
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas, PerRequest
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.parts.samplers.base import Sampler, ranking, ranking_statistics


class LoPA(Sampler):
    """The anchor commits what exceeds ``threshold``, and where nothing does the best position. Each lookahead commits
    one position more: one of the ``branching_factor`` best of those that the anchor leaves. The next forward runs on
    all of them, and the row goes on with the candidate of the largest

        alpha * creation + (1 - alpha) * future

    score: how sure the model is of a position: ``confidence``, ``margin`` (p1 - p2) or ``entropy`` (negative).
    Creation is the score of the position that a lookahead added (1 for the anchor), future the mean score of the lowest
    ``share`` of the candidate's masks in the open blocks.
    branching_factor: 0 or 1 is the anchor alone.
    as_published: a lookahead may commit the last open position, as published; the tokens are then one forward older.
    """

    traits = SamplerTraits(stateless=False, deterministic=True, by_confidence=False)
    per_request = ("threshold",)

    def __init__(
        self,
        threshold: PerRequest = 0.9,
        branching_factor: int = 2,
        score: str = "entropy",
        share: float = 1.0,
        alpha: float = 0.0,
        as_published: bool = False,
    ) -> None:
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        in_range("sampler.branching_factor", branching_factor, 0, 64, "0 and 1 mean no lookahead.")
        in_choices("sampler.score", score, ("confidence", "margin", "entropy"))
        in_range("sampler.share", share, 0.0, 1.0)
        in_range("sampler.alpha", alpha, 0.0, 1.0)
        self.threshold, self.score, self.share, self.alpha = threshold, score, share, alpha
        self.lookaheads = branching_factor if branching_factor > 1 else 0
        self.traits, self.as_published = self.traits.but(branches=self.lookaheads > 0), as_published

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=ranking_statistics(self.score)),)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """creation [B, K + 1]: of each candidate of the last step."""
        creation = torch.ones_like(canvas.temperature)[:, None].expand(-1, self.lookaheads + 1)
        return super().start(canvas, blocks) | {"creation": creation}

    def step(self, view: View, state: State) -> Step:
        rate = ranking(view.scores, self.score)
        accepted = view.open & (view.scores.confidence > state["threshold"][:, None])
        anchor = accepted | (argmax_mask(rate, view.open) & ~accepted.any(1, keepdim=True))
        candidates, masks = view.open & ~anchor, (view.canvas.undecided & view.blocks.in_open & ~anchor).sum(1)
        ahead = candidates.sum(1).clamp(max=self.lookaheads)
        if not self.as_published:
            ahead = ahead.masked_fill(masks == 1, 0)
        if not self.traits.branches:
            return view.step(anchor, accepted=accepted)
        ranked, place = rank(rate, candidates)
        order = torch.arange(self.lookaheads, device=ahead.device)
        best_rates = ranked.gather(1, order.clamp(max=ranked.shape[1] - 1).expand(len(ranked), -1))
        creation = torch.where(order < ahead[:, None], best_rates, 1.0)
        # The anchor comes first: a cache plans by the first candidate, and every mask of the others is one of its.
        owner, number = candidates_in_order(ahead + 1)
        more = owner.per_candidate(candidates) & (owner.per_candidate(place) == number[:, None] - 1)
        return view.step(
            owner.per_candidate(anchor) | more,
            accepted=owner.per_candidate(accepted) | more,
            owner=owner,
            state={"creation": F.pad(creation, (1, 0), value=1.0)},
        )

    def choose(self, view: View, owner: Owner, state: State) -> Tensor:
        """The candidate of the largest value; ties to the earlier lookahead."""
        rows, number = owner.table()
        rows = rows.roll(-1, 1)  # the anchor loses every tie
        lowest = ranking(view.scores, self.score).masked_fill(~view.open, torch.inf).sort(dim=1).values
        masks = view.open.sum(1)
        count = (self.share * masks.double()).floor().long().clamp(min=1)
        # A running sum, whose order no padding changes.
        future = lowest.cumsum(1).gather(1, count[:, None] - 1)[:, 0] / count
        future = torch.where(masks > 0, future, 1.0)
        value = self.alpha * state["creation"][owner.row, number] + (1 - self.alpha) * future
        values = torch.where(rows >= 0, value[rows.clamp(min=0)], -torch.inf)
        return rows.gather(1, values.argmax(1, keepdim=True))[:, 0]


def candidates_in_order(counts: Tensor) -> tuple[Owner, Tensor]:
    """The owner of ``counts`` [B] candidates of each row, and the number of each in its row [N], from 0."""
    row = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    return Owner(row, len(counts)), torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
