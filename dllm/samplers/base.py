"""The contract of a sampler: which of the open positions are committed in this turn.

A sampler sees numbers, never a model: the statistics of the scored positions, the open positions, and its own state.
The state is tensors that lead with the row. The loop selects its rows when others leave, repeats them for candidates,
and leaves them unchanged where the rule is not called.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dllm.canvas import Canvas, Request, per_row
from dllm.common.rowwise import Owner
from dllm.contract import Need, Schedule, Scores, State, Step, View
from dllm.setting import Setting


class Sampler:
    """Base of all samplers. Order of calls: ``resolved`` and ``check`` before weights are read, ``prepare`` for every
    request, ``start`` once for a batch, then in every turn ``choose`` (if the last step made several candidates) and
    ``propose``, which calls ``step``. A rule implements ``step``, and ``start`` if it has state; the rest has defaults.
    B rows, N candidates, L columns.

    deterministic: the same scores always give the same step. stateless: it carries nothing but parameters from turn to
    turn. revocable: it may remask. edits: it may replace tokens of the current block, and hold the block open when it
    is full. branches: it may offer several candidates, the first of which has every mask of the
    others, because caches plan by it. announces: it says what it will commit in its next turn. tempered: confidences
    come from the tempered distribution (Dream's convention). by_confidence: it never commits a position before one of
    higher confidence. asks: its step asks the device (how many steps there are, for example), so a turn with it cannot
    be recorded. prescribed: it commits the positions that a plan names, whatever their scores. lookahead: how many
    blocks are open beyond the current one.
    per_request: names of the parameters that may be one number for all rows, or have one entry per request.
    """

    deterministic = True
    stateless = True
    revocable = False
    edits = False
    branches = False
    announces = False
    tempered = False
    by_confidence = True
    asks = False
    prescribed = False
    lookahead = 0
    per_request: tuple[str, ...] = ()

    def needs(self) -> tuple[Need, ...]:
        """What must be scored for this rule. The head runs on the union of all parts' needs."""
        return (Need(),)

    def resolved(self, setting: Setting) -> Sampler:
        """The rule with what depends on the model: token ids of its texts, files made for that model. Called first, and
        before weights are read. Returns a new part, because parts never change. Raises UserError for what is
        missing."""
        return self

    def prepare(self, request: Request) -> Request:
        """The request as it goes on the canvas. A sampler may fix tokens of its own in it (Prophet's anchor)."""
        return request

    def check(self, setting: Setting) -> None:
        """Refuse, with UserError, a setting in which the rule cannot work. Called before weights are read."""

    def doubt(self, setting: Setting) -> str | None:
        """Why the rule works in a setting, but may do harm: a sentence for the user. None: nothing speaks against
        it."""
        return None

    def turns(self, canvas: Canvas) -> Tensor | None:
        """How many turns a fixed schedule takes for the rows of ``canvas`` [B]; None where the scores decide."""
        return None

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """State before the first turn, every tensor [B, ...]: the ``per_request`` parameters, and what a rule adds."""
        return {name: per_row(getattr(self, name), canvas) for name in self.per_request}

    def step(self, view: View, state: State) -> Step:
        """Decide from one forward, and return it by ``view.step``. Commits outside ``view.open`` are ignored, and
        edits outside ``view.editable``. The state's changed entries are [B, ...]."""
        raise NotImplementedError

    def propose(self, view: View, state: State) -> Step:
        """What the loop and wrappers call: ``step`` for the active rows. Rows in which the cache's plan forces
        positions commit the proposals at those instead."""
        shapes, forces = view.blocks.shapes, view.may_force
        if forces:
            view = replace(view, open=view.open & view.active[:, None])
        step = self.step(view, state) if shapes.any(view.active) else view.step(view.canvas.nothing)
        active, open_ = step.owner.each(view.active), step.owner.each(view.open)
        remask = step.remask & active[:, None] if self.revocable else step.remask
        step = replace(step, commit=step.commit & open_, remask=remask)
        if step.edit is not None:
            edit = step.edit & step.owner.each(view.editable) & active[:, None]
            step = replace(step, edit=edit, hold=step.hold & view.active)
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


def told(view: View) -> Tensor:
    """Masks of the open blocks that this forward scored [B, L]. A rule that keeps a history follows all of them, since
    a wrapper may narrow what it may commit."""
    return view.canvas.undecided & view.blocks.in_open & view.scores.scored


def margin(scores: Scores) -> Tensor:
    """Probability of the likeliest token minus that of the runner-up [B, L], whichever is proposed. A confidence of -1
    (``eos_last``) stays -1."""
    return torch.where(scores.confidence < 0, scores.confidence, scores.stat("first") - scores.stat("second"))
