"""Draft ahead, verify in the next forward, keep the longest agreeing draft (FreeDave, arXiv 2510.00294); a wrapper."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dllm.canvas import Canvas
from dllm.common.ranking import best
from dllm.common.rowwise import Owner
from dllm.contract import Schedule, State, Step, View
from dllm.errors import UserError, name_of
from dllm.samplers.base import Sampler
from dllm.samplers.wrapper import Wrapper, inside
from dllm.setting import Setting


class FreeDave(Wrapper):
    """Candidate k is the inner rule applied k + 1 times to the same scores; the next forward runs on all of them.

    Candidate 0 is what the inner rule would do, so it is always right. From a candidate's own scores follows its
    successor; whichever candidate agrees with the successor of the one reached is reached too, the furthest first.
    Over a static inner sampler the output is exactly the static one; over a threshold it is FreeDave++ (not
    lossless: the state reached is a subset of the threshold's next state). draft_steps: candidates per turn.
    A row that the cache's plan forces (Dream's first position of a block) drafts on top of that, from scores that are
    stale by then: a rule that judges positions has nothing to judge, so each draft guesses the surest position more.
    reference_branches: offer min(draft_steps, masks) candidates even where some are alike, as published (it costs
    query tokens).
    """

    def __init__(self, inner: Sampler, draft_steps: int = 4, reference_branches: bool = False) -> None:
        if draft_steps < 1:
            raise UserError(f"sampler.draft_steps={draft_steps} must be at least 1 (1 is the inner sampler itself).")
        if not (inner.deterministic and inner.stateless) or inner.revocable:
            raise UserError(
                f"sampler={name_of(self)} repeats its inner sampler on the same scores, so "
                f"sampler/inner={name_of(inner)} must be deterministic and carry no state. "
                "Use static, confidence, factor, localleap, dparallel or eb; prophet goes "
                "around it: sampler=prophet sampler/inner=freedave."
            )
        super().__init__(inner)
        self.branches, self.announces = True, False
        self.draft_steps, self.reference_branches = draft_steps, reference_branches

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if setting.sampling.temperature != 0:
            raise UserError(
                f"sampling.temperature={setting.sampling.temperature}: sampler={name_of(self)} verifies drafts against "
                "the inner sampler's own decision, which must not be random. Use temperature 0."
            )

    def turns(self, canvas: Canvas) -> None:
        """Drafts save turns: the scores decide how many."""

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """steps: inner steps done in the block when the last drafts were made, for schedules that count by them;
        left: masks of the row after each draft, by which the kept one is known; turn: when that was."""
        zero = torch.zeros_like(canvas.start)
        own = {"steps": zero, "left": zero[:, None].expand(-1, self.draft_steps), "block": zero, "turn": zero - 1}
        return super().start(canvas, blocks) | own

    def propose(self, view: View, state: State) -> Step:
        """Drafts of all rows: up to ``draft_steps`` each, one where a single mask is left or nothing is open."""
        forced, steps = view.forced, self._steps(view, state)
        stale = forced.any(1, keepdim=True)
        left, draft = view.open & ~forced, replace(view, blocks=replace(view.blocks, forwards=steps))
        drafts: list[Tensor] = []
        for _ in range(self.draft_steps):
            draft = replace(draft, open=left, blocks=replace(draft.blocks, forwards=draft.blocks.forwards + 1))
            step = self._once(draft, state)
            new, tokens = step.commit, step.tokens
            if not drafts:
                new = torch.where(stale, forced, new)
            elif step.accepted is not None:
                new = torch.where(stale, best(view.scores.confidence, left), new)
            drafts.append(new if not drafts else drafts[-1] | new)
            left, draft = left & ~new, replace(draft, canvas=draft.canvas.commit(new, tokens))
        made, room = torch.stack(drafts, 1), (view.open & ~forced).sum(1)
        most = torch.where(stale[:, 0], room, self.draft_steps)
        out = candidates_of(view, made, most, room * self.reference_branches)
        masks = view.canvas.undecided.sum(1, keepdim=True) - made.sum(2)
        own = {"steps": steps, "left": masks, "block": view.blocks.number, "turn": view.blocks.turn}
        written = torch.where(drafts[-1], draft.canvas.tokens, view.scores.token)
        return view.step(out.commit, tokens=out.owner.each(written), owner=out.owner, state=own)

    def _once(self, view: View, state: State) -> Step:
        """The inner rule's step, whatever the cache forces."""
        return self.inner.propose(replace(view, forced=view.canvas.nothing, active=view.open.any(1)), inside(state))

    def _steps(self, view: View, state: State) -> Tensor:
        """Inner steps that lie behind the canvas in this block [B]: one a forward, and those that drafts saved."""
        kept = (state["left"] == view.canvas.undecided.sum(1, keepdim=True)).long()
        known = (state["turn"] == view.blocks.turn - 1) & (state["block"] == view.blocks.number)
        return torch.where(known, state["steps"] + kept.argmax(1) + 1, view.index)

    def choose(self, view: View, owner: Owner, state: State) -> Tensor:
        """The furthest candidate on a chain of agreeing successors, from candidate 0 of each row on."""
        state = owner.each(state)
        view = replace(view, blocks=replace(view.blocks, forwards=self._steps(view, state) + 1))
        step = self._once(view, state)
        successor = view.canvas.commit(step.commit, step.tokens)
        rows, _ = owner.table()
        agree = agreement(view.canvas, successor, rows)
        at = torch.zeros_like(rows[:, 0])
        for _ in range(rows.shape[1] - 1):
            ahead = agree.gather(1, at[:, None, None].expand(-1, 1, agree.shape[2]))[:, 0]
            furthest = torch.where(ahead, torch.arange(ahead.shape[1], device=at.device), -1).amax(1)
            at = torch.maximum(at, furthest)
        return rows.gather(1, at[:, None])[:, 0]


def candidates_of(view: View, drafts: Tensor, most: Tensor, least: Tensor) -> Step:
    """The step that offers the first ``most`` [B] (one at least) of ``drafts`` [B, K, L] as candidates, without those
    that repeat their predecessor, but the first ``least`` [B] of them all the same."""
    rows, count, _ = drafts.shape
    grown = drafts.sum(2)
    wanted = torch.ones(rows, count, dtype=torch.bool, device=drafts.device)
    wanted[:, 1:] = grown[:, 1:] > grown[:, :-1]
    place = torch.arange(count, device=drafts.device)
    wanted = (wanted | (place < least[:, None])) & (place < most.clamp(min=1)[:, None])
    kept = wanted.flatten().nonzero()[:, 0]
    return view.step(drafts.flatten(0, 1)[kept], owner=Owner(kept // count, rows))


def agreement(candidates: Canvas, successors: Canvas, rows: Tensor) -> Tensor:
    """[B, K, K]: whether everything that candidate j > i has decided stands alike in the successor of i."""
    at, real = rows.clamp(min=0), rows >= 0
    decided, said = ~candidates.masked[at], candidates.tokens[at]  # [B, K, L]
    then, token = ~successors.masked[at], successors.tokens[at]
    same = ~decided[:, None] | (then[:, :, None] & (said[:, None] == token[:, :, None]))
    order = torch.arange(rows.shape[1], device=rows.device)
    return same.all(-1) & real[:, None, :] & real[:, :, None] & (order[:, None] < order)
