"""Commit what is confident; where that is little, try several tokens (reconstruction of ETE, arXiv 2511.21103).

ETE is "explore, then exploit". Neither its algorithm nor its code was obtainable, so every choice that the paper's
abstract leaves open is a parameter here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.errors import in_choices, in_range
from dllm.common.ranking import argmax_mask, few_largest
from dllm.common.rowwise import Owner
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas, PerRequest
from dllm.contract.readouts import AllLogits, Statistic
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.lopa import candidates_in_order


class ETE(Sampler):
    """Exploit: commit what reaches ``threshold`` in the current block and ``cross_threshold`` in ``lookahead_blocks``
    further ones. Where that is fewer than ``explore_min_commit`` positions, explore: among the block's positions whose
    ``explore_width`` likeliest tokens hold at least ``explore_mass``, take the most uncertain one. Each of these tokens
    becomes a candidate of the next forward, and the row goes on with the most plausible.
    """

    traits = SamplerTraits(stateless=False, deterministic=True, branches=True, by_confidence=False)
    per_request = ("threshold", "cross_threshold")

    def __init__(
        self,
        threshold: PerRequest = 0.9,
        lookahead_blocks: int = 1,
        cross_threshold: PerRequest = 0.95,
        explore_min_commit: int = 2,
        explore_width: int = 3,
        explore_mass: float = 0.8,
        explore_position: str = "entropy",
        explore_score: str = "pseudo_likelihood",
    ) -> None:
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        in_range("sampler.cross_threshold", cross_threshold, 0.0, 1.0)
        in_range("sampler.explore_mass", explore_mass, 0.0, 1.0)
        in_range("sampler.lookahead_blocks", lookahead_blocks, 0, 64)
        in_range("sampler.explore_width", explore_width, 1, 64)
        in_choices("sampler.explore_position", explore_position, ("entropy", "lowest_confidence", "leftmost"))
        in_choices("sampler.explore_score", explore_score, ("pseudo_likelihood", "cascade_count", "prior"))
        self.threshold, self.cross_threshold = threshold, cross_threshold
        self.traits = self.traits.but(lookahead=lookahead_blocks)
        self.min_commit, self.width, self.mass = explore_min_commit, explore_width, explore_mass
        self.position, self.score = explore_position, explore_score

    def needs(self) -> tuple[Need, ...]:
        reads = (Statistic("first"), Statistic("entropy"), *([AllLogits()] if self.min_commit else []))
        return (Need(reads=reads),)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        prior = canvas.start.new_zeros(len(canvas.start), self.width, dtype=torch.float64)
        return super().start(canvas, blocks) | {"prior": prior}

    def step(self, view: View, state: State) -> Step:
        current = view.open & (view.canvas.columns < view.blocks.end[:, None])
        confidence = view.scores.confidence
        bar = torch.where(current, state["threshold"][:, None], state["cross_threshold"][:, None])
        exploit = view.open & (confidence >= bar)
        candidates = current & ~exploit
        few = (exploit.sum(1) < self.min_commit) & candidates.any(1)
        explored, ids, chances = self._explore(view, candidates & few[:, None])
        exploring = explored.any(1)
        # Where neither rule finds a position: the best of the block.
        needy = ~exploit.any(1, keepdim=True) & ~exploring[:, None]
        commit = exploit | (argmax_mask(confidence, candidates) & needy)
        return self._branch(view, commit, exploit, explored, ids, chances)

    def _explore(self, view: View, among: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Where each row explores [B, L] (at most one position), and the candidates' ids and probabilities [B, R]."""
        scores = view.scores
        if not self.min_commit:
            empty = torch.zeros_like(among)
            return empty, scores.token[:, :1], scores.confidence[:, :1]
        all_logits, length = scores.of(AllLogits()), among.shape[1]
        logits, ids = few_largest(all_logits.values, self.width)
        columns = all_logits.columns
        likeliest = scores.statistic("first").gather(1, columns.clamp(max=length - 1)).unsqueeze(-1)
        chance = likeliest * (logits - logits[..., :1]).double().exp()
        mass = chance.new_zeros(len(chance), length + 1).scatter(1, columns, chance.sum(-1))[:, :-1]
        where = argmax_mask(self._rate(view), among & (mass >= self.mass))
        column = where.long().argmax(1, keepdim=True)
        row = (columns == column).long().argmax(1)
        at = row[:, None, None].expand(-1, 1, ids.shape[-1])
        return where, ids.gather(1, at)[:, 0], chance.gather(1, at)[:, 0]

    def _rate(self, view: View) -> Tensor:
        if self.position == "leftmost":
            return -view.canvas.columns.double().expand_as(view.open)
        return view.scores.statistic("entropy") if self.position == "entropy" else -view.scores.statistic("first")

    def _branch(
        self, view: View, commit: Tensor, exploit: Tensor, explored: Tensor, ids: Tensor, chances: Tensor
    ) -> Step:
        """One candidate per explored token. A single one if the token would finish the canvas, or for ``prior``."""
        finished = ~(view.canvas.undecided & ~commit & ~explored).any(1)
        several = explored.any(1) & ~finished & (self.score != "prior")
        owner, branch = candidates_in_order(torch.where(several, ids.shape[1], 1))
        row = owner.row
        tokens = torch.where(explored[row], ids[row, branch][:, None], view.scores.token[row])
        confidence = torch.where(explored[row], chances[row, branch][:, None], view.scores.confidence[row])
        prior = chances.log().expand(-1, self.width) if chances.shape[1] == 1 else chances.log()
        return view.step(
            (commit | explored)[row],
            tokens=tokens,
            confidence=confidence,
            accepted=exploit[row],
            owner=owner,
            state={"prior": prior},
        )

    def choose(self, view: View, owner: Owner, state: State) -> Tensor:
        """The most plausible candidate; ties to the earlier one."""
        rows, branch = owner.table()
        prior = state["prior"][owner.row, branch]
        current = view.open & (view.canvas.columns < view.blocks.end[:, None])
        likely = view.scores.statistic("first")
        if self.score == "cascade_count":
            # Counts are whole and p / 2 is at most 1/2, so the prior only breaks ties.
            value = (current & (likely >= state["threshold"][owner.row, None])).sum(1) + prior.exp() / 2
        else:
            value = prior + (likely.clamp(min=1e-300).log() * current).sum(1)
        values = torch.where(rows >= 0, value[rows.clamp(min=0)], -torch.inf)
        return rows.gather(1, values.argmax(1, keepdim=True))[:, 0]
