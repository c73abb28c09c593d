"""Draft ahead with the inner rule, and keep the longest draft that agrees (FreeDave, arXiv 2510.00294)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from dllm.common.errors import Refusal, in_range, name_of
from dllm.common.ranking import argmax_mask
from dllm.common.rowwise import Owner
from dllm.contract import State, Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.clash import COLD, USE_FIXED, Clash
from dllm.contract.traits import Schedule
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.wrapper import Wrapper, inside, view_inside


class FreeDave(Wrapper):
    """Commit the furthest of the inner rule's drafts that the next forward agrees with. Candidate k is the inner rule
    applied k + 1 times to the same scores. The next forward runs on all candidates.

    Candidate 0 is what the inner rule would do, so it is always right. The scores of a candidate give its successor.
    Start at candidate 0 and go on to the furthest candidate that agrees with the successor, until none does.
    Over a static inner sampler the output is exactly the static one. Over a threshold it is FreeDave++, which is not
    lossless: the state reached is a subset of the threshold's next state.

    A row in which the cache's plan forces positions (Dream's first of a block) drafts on top of these, from scores that
    are stale by then. A rule that judges single positions cannot judge them, so each draft adds the most confident one.
    draft_steps: candidates per turn. as_published: offer min(draft_steps, masks) candidates even if some are
    equal, as published (it costs query tokens).
    """

    clashes = (
        Clash(
            lambda c: c.blocks.traits.slides,
            "{sampler} drafts several turns in one block, but {blocks} moves its own after every turn.",
            [USE_FIXED],
        ),
        Clash(
            lambda c: c.sampling.temperature != 0,
            "{sampling.temperature}: {sampler} verifies drafts against the inner sampler's own decision, which must "
            "not be random.",
            [COLD],
        ),
    )

    def __init__(self, inner: Sampler, draft_steps: int = 4, as_published: bool = False) -> None:
        in_range("sampler.draft_steps", draft_steps, 1, advice="1 is the inner sampler itself.")
        if not (inner.traits.deterministic and inner.traits.stateless) or inner.traits.revocable or inner.traits.edits:
            raise Refusal(
                "{sampler} repeats its inner sampler on the same scores, so {sampler/inner} must be deterministic "
                "and carry no state. Use static, confidence, factor, localleap, dparallel or eb. To combine it with "
                "prophet, put freedave inside: {sampler=prophet} {sampler/inner=freedave}.",
                [name_of(self), name_of(inner)],
            )
        super().__init__(inner)
        self.traits = self.traits.but(branches=True, commits_ahead=True, plans_ahead=False)
        self.draft_steps, self.as_published = draft_steps, as_published

    def turns(self, canvas: Canvas) -> None:
        """None: drafts save turns, and the scores decide how many."""

    @property
    def per_block(self) -> Mapping[str, float]:
        return {**super().per_block, "turn": -1}

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """steps [B]: inner steps done in the block when the last drafts were made, which fixed schedules count by.
        masks [B, K]: those of the row after each draft, which tell the draft it went on with. turn [B]: when the
        drafts were made."""
        zero = torch.zeros_like(canvas.start)
        memory = {"steps": zero, "masks": zero[:, None].expand(-1, self.draft_steps), "turn": zero - 1}
        return super().start(canvas, blocks) | memory

    def propose(self, view: View, state: State) -> Step:
        """Draft in all rows: up to ``draft_steps`` candidates, and one where a single mask is left or nothing is
        open."""
        drafts, written, memory = self.drafts(view, state)
        room = (view.open & ~view.forced_positions).sum(1)
        most = torch.where(view.forced_positions.any(1), room, self.draft_steps)
        commit, owner = candidates_of(drafts, most, room * self.as_published)
        return view.step(commit, tokens=owner.per_candidate(written), owner=owner, state=memory)

    def drafts(self, view: View, state: State) -> tuple[Tensor, Tensor, State]:
        """The inner rule applied once, twice, ... to the same scores: what each draft commits [B, K, L], the tokens
        [B, L], and the state that tells a draft from another."""
        forced, steps = view.forced_positions, self._steps(view, state)
        stale = forced.any(1, keepdim=True)
        remaining, draft = view.open & ~forced, replace(view, blocks=replace(view.blocks, forwards=steps))
        drafts: list[Tensor] = []
        for _ in range(self.draft_steps):
            draft = replace(draft, open=remaining, blocks=replace(draft.blocks, forwards=draft.blocks.forwards + 1))
            step = self._once(draft, state)
            new, tokens = step.commit, step.tokens
            if not drafts:
                new = torch.where(stale, forced, new)
            elif step.accepted is not None:
                new = torch.where(stale, argmax_mask(view.scores.confidence, remaining), new)
            drafts.append(new if not drafts else drafts[-1] | new)
            remaining, draft = remaining & ~new, replace(draft, canvas=draft.canvas.commit(new, tokens))
        commits = torch.stack(drafts, 1)
        masks = view.canvas.masked.sum(1, keepdim=True) - commits.sum(2)  # an end of text cuts none of these
        memory = {"steps": steps, "masks": masks, "turn": view.blocks.turn}
        return commits, torch.where(drafts[-1], draft.canvas.tokens, view.scores.token), memory

    def _once(self, view: View, state: State) -> Step:
        """The inner rule's step, as if the cache forced nothing."""
        return self.inner.propose(replace(view_inside(view), forced=None, active=view.open.any(1)), inside(state))

    def _steps(self, view: View, state: State) -> Tensor:
        """Inner steps that led to the canvas in this block [B]: one per forward, and those that drafts saved."""
        matches = (state["masks"] == view.canvas.masked.sum(1, keepdim=True)).long()
        is_next = state["turn"] == view.blocks.turn - 1
        return torch.where(is_next, state["steps"] + matches.argmax(1) + 1, view.block_step)

    def follows(self, candidates: Canvas, successors: Canvas, rows: Tensor) -> Tensor:
        """[B, K, K]: whether the row may go on from candidate i to candidate j; ``rows`` [B, K] are their indices."""
        return agreement(candidates, successors, rows)

    def choose(self, view: View, owner: Owner, state: State) -> Tensor:
        """The furthest candidate on the chain of agreeing successors that starts at each row's candidate 0."""
        state = owner.per_candidate(state)
        view = replace(view, blocks=replace(view.blocks, forwards=self._steps(view, state) + 1))
        step = self._once(view, state)
        successor = view.canvas.commit(step.commit, step.tokens)
        rows, _ = owner.table()
        agree = self.follows(view.canvas, successor, rows)
        at = torch.zeros_like(rows[:, 0])
        for _ in range(rows.shape[1] - 1):
            ahead = agree.gather(1, at[:, None, None].expand(-1, 1, agree.shape[2]))[:, 0]
            furthest = torch.where(ahead, torch.arange(ahead.shape[1], device=at.device), -1).amax(1)
            at = torch.maximum(at, furthest)
        return rows.gather(1, at[:, None])[:, 0]


def candidates_of(drafts: Tensor, most: Tensor, least: Tensor) -> tuple[Tensor, Owner]:
    """The first ``most`` [B] (at least one) of ``drafts`` [B, K, L] as candidates: what each commits [N, L], and their
    owner. Those that repeat their predecessor are left out, except among the first ``least`` [B]."""
    rows, count, _ = drafts.shape
    grown = drafts.sum(2)
    is_candidate = torch.ones(rows, count, dtype=torch.bool, device=drafts.device)
    is_candidate[:, 1:] = grown[:, 1:] > grown[:, :-1]
    place = torch.arange(count, device=drafts.device)
    is_candidate = (is_candidate | (place < least[:, None])) & (place < most.clamp(min=1)[:, None])
    index = is_candidate.flatten().nonzero()[:, 0]
    return drafts.flatten(0, 1)[index], Owner(index // count, rows)


def agreement(candidates: Canvas, successors: Canvas, rows: Tensor) -> Tensor:
    """[B, K, K]: whether the successor of candidate i holds every token that candidate j > i has decided."""
    at, real = rows.clamp(min=0), rows >= 0
    decided, tokens = ~candidates.masked[at], candidates.tokens[at]  # [B, K, L]
    then, token = ~successors.masked[at], successors.tokens[at]
    same = ~decided[:, None] | (then[:, :, None] & (tokens[:, None] == token[:, :, None]))
    order = torch.arange(rows.shape[1], device=rows.device)
    return same.all(-1) & real[:, None, :] & real[:, :, None] & (order[:, None] < order)
