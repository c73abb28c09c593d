"""The contract between the loop and a sampler.

A sampler sees numbers, never a model: the statistics of the scored rows, the open positions, and its own state. Its
state belongs to the request: tensors with a leading batch dimension, which the loop gathers when rows are dropped,
branched or kept, and leaves untouched in rows that have nothing open.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllm.blocks.base import Blocks, Span
from dllm.canvas import Canvas, Request, of, per_row
from dllm.errors import in_range
from dllm.scores import Need, Scores

if TYPE_CHECKING:
    from dllm.compose.setting import Setting

__all__ = ["Sampler", "State", "Step", "View", "best", "best_of", "in_range", "per_row", "quota", "ranking"]

State = dict[str, Tensor]


@dataclass(frozen=True)
class View:
    """What a sampler may look at: the canvas, its scores, the open positions [B, L] and where the blocks stand.

    ``acts`` [B]: rows whose rule is called this turn (something is open and the cache forces nothing).
    """

    canvas: Canvas
    scores: Scores
    open: Tensor
    blocks: Span
    acts: Tensor

    @cached_property
    def forced(self) -> Tensor | None:
        """Positions [B, L] that the cache's plan commits by itself, with their proposals."""
        only = self.scores.only
        return None if only is None else only & self.canvas.undecided

    @cached_property
    def acting(self) -> bool:
        """Whether any row acts. Where shapes are static nobody asks the device: always."""
        return self.blocks.sizes is not None or bool(self.acts.any())

    @property
    def index(self) -> Tensor:
        """Index of this forward within the block [B], from 0: what fixed schedules count by."""
        return self.blocks.forwards - 1


@dataclass(frozen=True)
class Step:
    """What a sampler decides. N candidates; N = B and ``owner`` None for one candidate per row.

    commit [N, L]: positions to fix; tokens [N, L]: to these ids, elsewhere what the rule would propose (None: the
    scores' proposals everywhere). confidence [N, L]: the
    probability of each of ``tokens``, for traces (None: where they are not the scores' proposals, nobody knows).
    accepted [N, L]: those that the rule itself accepted, the rest were forced (None: a schedule, which judges no single
    position). remask [N, L]: commits to undo. owner [N]: the row each candidate comes from, ascending. state: the
    entries of the sampler's state that changed. next [B, L]: the positions it will commit in its next turn, numbered
    from 1 in its order (0: not then), if it knows. stop [B]: rows that are finished now, whatever their blocks still
    wait for.
    """

    commit: Tensor
    tokens: Tensor | None = None
    confidence: Tensor | None = None
    accepted: Tensor | None = None
    remask: Tensor | None = None
    owner: Tensor | None = None
    state: State = field(default_factory=dict)
    next: Tensor | None = None
    stop: Tensor | None = None


class Sampler:
    """Base of all samplers: ``start`` makes the state, ``step`` decides, ``keep`` chooses among candidates.

    deterministic: the same scores always give the same step. stateless: nothing is carried between turns except
    parameters. revocable: may remask. branches: may offer several candidates. knows_next: returns ``Step.next``.
    tempered: confidences come from the tempered distribution (Dream's convention). by_confidence: what has a lower
    confidence is never committed before the rest. lookahead: how many blocks it wants open beyond the current one.
    """

    deterministic = True
    stateless = True
    revocable = False
    branches = False
    knows_next = False
    tempered = False
    by_confidence = True
    lookahead = 0

    def needs(self) -> tuple[Need, ...]:
        """What must be scored for this rule. The head runs on the union of all parts' needs."""
        return (Need(),)

    def bound(self, setting: Setting) -> Sampler:
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

    def start(self, canvas: Canvas, blocks: Blocks) -> State:
        """State and per-request parameters, every tensor with a leading batch dimension."""
        return {}

    def step(self, view: View, state: State) -> Step:
        """One decision from one forward. What it commits outside ``view.open`` is ignored."""
        raise NotImplementedError

    def propose(self, view: View, state: State) -> Step:
        """What the loop and wrappers call: ``step`` for the rows that act, the plan's ``only``, with its proposals, for
        those it forces."""
        if view.forced is not None:
            view = replace(view, open=view.open & view.acts[:, None])
        step = self.step(view, state) if view.acting else Step(torch.zeros_like(view.open))
        remask = None if step.remask is None else step.remask & of(view.acts, step.owner)[:, None]
        step = replace(step, commit=step.commit & of(view.open, step.owner), remask=remask)
        if view.forced is None:
            return step
        forced, proposed = of(view.forced, step.owner), of(view.scores.token, step.owner)
        tokens = None if step.tokens is None else torch.where(forced, proposed, step.tokens)
        return replace(step, commit=step.commit | forced, tokens=tokens)

    def keep(self, view: View, owner: Tensor, state: State) -> Tensor:
        """Index [B] of the candidate each row goes on with, from a view of all candidates [N]. Called only when the
        last ``step`` made several."""
        raise NotImplementedError


def each_row(value: Tensor, canvas: Canvas) -> Tensor:
    """What all rows share [...] as state of each [B, ...], on the canvas's device; stored once until rows leave."""
    return value.to(canvas.start.device).expand(len(canvas.start), *value.shape)


def margin(scores: Scores) -> Tensor:
    """Probability of the likeliest token less that of the runner-up [B, L], whichever is proposed; -1 stays -1."""
    return torch.where(scores.confidence < 0, scores.confidence, scores.stat("first") - scores.stat("second"))


def ranks(owner: Tensor) -> tuple[Tensor, Tensor]:
    """Candidate rows by request [B, K], padded with -1, and each candidate's place [N]; ``owner`` [N] ascends."""
    first = torch.searchsorted(owner, torch.arange(int(owner[-1]) + 1, device=owner.device))
    rows = torch.arange(len(owner), device=owner.device)
    place = rows - first[owner]
    out = torch.full((len(first), int(place.max()) + 1), -1, device=owner.device)
    out[owner, place] = rows
    return out, place


def best(score: Tensor, among: Tensor) -> Tensor:
    """The highest-scoring position of ``among`` in each row [B, L]; ties to the lowest position."""
    top = torch.where(among, score, -torch.inf).argmax(1, keepdim=True)
    return torch.zeros_like(among).scatter_(1, top, among.gather(1, top))


def ranking(score: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of each row in descending order (-inf behind those of ``among``), and every position's place in it, from
    0; ties to the lowest position. Both [B, L]."""
    ranked, order = torch.where(among, score, -torch.inf).sort(dim=1, descending=True, stable=True)
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return ranked, torch.empty_like(order).scatter_(1, order, places)


def best_of(score: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """The ``count`` [B] highest-scoring positions of ``among`` in each row; ties to the lowest position."""
    return among & (ranking(score, among)[1] < count[:, None])


def quota(view: View, steps: Tensor, index: Tensor | None = None) -> Tensor:
    """LLaDA's fixed schedule [B]: the block's masks split over ``steps`` [B], the first ones taking one more. The last
    one, and any after it, takes all that is open: where a cache let fewer be committed than were due, they would stay.
    index [B]: of this forward in the schedule, if not in the block.
    """
    masks, index = view.blocks.masked, view.index if index is None else index
    return torch.where(index < steps - 1, masks // steps + (index < masks % steps), view.open.sum(1))
