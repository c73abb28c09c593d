"""The contract of a sampler: which of the open positions are committed in this turn.

A sampler sees numbers, never a model: the statistics of the scored positions, the open ones, and its own state. Its
state belongs to the request: tensors that lead with the row, which the loop selects when rows leave, spreads over
candidates, and leaves untouched in rows whose rule is not called.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dllm.canvas import Canvas, Request
from dllm.common.rowwise import Owner
from dllm.contract import Need, Schedule, Scores, State, Step, View
from dllm.setting import Setting


class Sampler:
    """Base of all samplers. Order of calls: ``resolved`` and ``check`` before weights are read, ``prepare`` for every
    request, ``start`` once for a batch, then in every turn ``choose`` (if the last step made several candidates) and
    ``propose``, which calls ``step``. A rule writes ``start`` and ``step``; the rest has defaults.

    deterministic: the same scores always give the same step. stateless: nothing is carried between turns except
    parameters. revocable: may remask. branches: may offer several candidates. announces: says what it will commit in
    its next turn. tempered: confidences come from the tempered distribution (Dream's convention). by_confidence: what
    has a lower confidence is never committed before the rest. lookahead: blocks open beyond the current one.
    """

    deterministic = True
    stateless = True
    revocable = False
    branches = False
    announces = False
    tempered = False
    by_confidence = True
    lookahead = 0

    def needs(self) -> tuple[Need, ...]:
        """What must be scored for this rule. The head runs on the union of all parts' needs."""
        return (Need(),)

    def resolved(self, setting: Setting) -> Sampler:
        """The rule with what the model brings: ids of its texts, files made for it. Called before weights are read, and
        before all else; what it learns makes a new part, for no part ever changes. Raises UserError for what is not
        there."""
        return self

    def prepare(self, request: Request) -> Request:
        """A request before it is laid out; a sampler may fix tokens of its own (Prophet's anchor)."""
        return request

    def check(self, setting: Setting) -> None:
        """Refuse, with UserError, a setting in which the rule cannot work. Called before weights are read."""

    def turns(self, canvas: Canvas) -> Tensor | None:
        """How many turns a fixed schedule takes for the rows of ``canvas`` [B]; None where the scores decide."""
        return None

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """State and per-request parameters, every tensor [B, ...]."""
        return {}

    def step(self, view: View, state: State) -> Step:
        """One decision from one forward, made by ``view.step``. What it commits outside ``view.open`` is ignored."""
        raise NotImplementedError

    def propose(self, view: View, state: State) -> Step:
        """What the loop and wrappers call: ``step`` for the active rows, and what the cache's plan forces, with its
        proposals, for the others."""
        shapes, forces = view.blocks.shapes, view.may_force
        if forces:
            view = replace(view, open=view.open & view.active[:, None])
        step = self.step(view, state) if shapes.any(view.active) else view.step(view.canvas.nothing)
        active, open_ = step.owner.each(view.active), step.owner.each(view.open)
        remask = step.remask & active[:, None] if self.revocable else step.remask
        step = replace(step, commit=step.commit & open_, remask=remask)
        if not forces:
            return step
        forced, proposed = step.owner.each(view.forced), step.owner.each(view.scores.token)
        sure = step.owner.each(view.scores.confidence)
        return replace(
            step, commit=step.commit | forced, tokens=torch.where(forced, proposed, step.tokens),
            confidence=torch.where(forced, sure, step.confidence),
        )  # fmt: skip

    def choose(self, view: View, owner: Owner, state: State) -> Tensor:
        """Index [B] of the candidate each row goes on with, from a view of all candidates [N]; ``state`` is [B].
        Called only when the last ``step`` made several."""
        raise NotImplementedError


def each_row(value: Tensor, canvas: Canvas) -> Tensor:
    """What all rows share [...] as state of each [B, ...], on the canvas's device; stored once until rows leave."""
    return value.to(canvas.start.device).expand(len(canvas.start), *value.shape)


def margin(scores: Scores) -> Tensor:
    """Probability of the likeliest token less that of the runner-up [B, L], whichever is proposed; -1 stays -1."""
    return torch.where(scores.confidence < 0, scores.confidence, scores.stat("first") - scores.stat("second"))


def quota(view: View, steps: Tensor, index: Tensor | None = None) -> Tensor:
    """LLaDA's fixed schedule [B]: the block's masks split over ``steps`` [B], the first ones taking one more. The last
    one, and any after it, takes all that is open: where a cache let fewer be committed than were due, they would stay.
    index [B]: of this forward in the schedule, if not in the block.
    """
    masks, index = view.blocks.masks, view.index if index is None else index
    return torch.where(index < steps - 1, masks // steps + (index < masks % steps), view.open.sum(1))
