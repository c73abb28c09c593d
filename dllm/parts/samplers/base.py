"""The contract of a sampler: which of the open positions are committed in this turn.

A sampler sees numbers, never a model: the statistics of the scored positions, the open positions, and its own state.
The state is tensors that lead with the row. The loop selects its rows when others leave, repeats them for candidates,
and leaves them unchanged where the rule is not called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import Module

from dllm.common.errors import Set
from dllm.common.rowwise import Owner
from dllm.contract import BlockState, Need, Scores, State, Step, View
from dllm.contract.canvas import Canvas, Request, per_row
from dllm.contract.checks import checked_contents, checked_step
from dllm.contract.clash import Clash
from dllm.contract.readouts import Statistic
from dllm.contract.setting import Setting
from dllm.contract.traits import SamplerTraits, Schedule, declared

TOO_MANY_LAYERS = Clash(
    lambda c: (c.part.layers or 0) > c.model.layers,
    "{sampler.layers} is more than the {model.layers:value} layers of this model.",
    [Set("sampler.layers", None)],
    "Or name fewer: {null} is the last quarter of them.",
)


class Sampler:
    """Base of all samplers. Order of calls: ``resolved`` before weights are read, ``prepare`` for every request,
    ``start`` once for a batch, then in every turn ``choose`` (if the last step made several candidates) and
    ``propose``, which calls ``step``. A rule implements ``step``, and ``start`` if it has state; the rest has defaults.
    B rows, N candidates, L columns.

    ``traits`` say what other parts must know of a rule. What a step can show is refused in the first step that shows
    otherwise; the rest is tried by ``python -m dllm.laws``.
    """

    traits: SamplerTraits
    clashes: ClassVar[tuple[Clash, ...]] = ()  # what it does not go together with
    per_request: tuple[str, ...] = ()  # names of parameters that may have one entry per request

    @property
    def per_block(self) -> Mapping[str, float]:
        """Entries of the state that end with their block, and what they are when the next one opens: kept by
        column [B, L, ...], or numbers of a row [B]."""
        return {}

    def __init_subclass__(cls) -> None:
        declared(cls, "SamplerTraits")

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

    def warning(self, setting: Setting) -> str | None:
        """Why the rule works in a setting but may do harm: a sentence for the user. None: no objection."""
        return None

    def turns(self, canvas: Canvas) -> Tensor | None:
        """How many turns a fixed schedule takes for the rows of ``canvas`` [B]; None where the scores decide."""
        return None

    def may_wait(self, canvas: Canvas) -> Tensor:
        """How many turns in a row the rule may leave the rows of ``canvas`` [B] as they are: ``patience``, or all turns
        of a fixed schedule, which may have more forwards than masks."""
        patience, turns = torch.full_like(canvas.start, self.traits.patience), self.turns(canvas)
        return patience if turns is None else torch.maximum(patience, turns)

    def turn_temperature(self, blocks: BlockState, state: State) -> Tensor | None:
        """The temperature of each row's coming forward [B], float64; None: that of the request. Only a rule that
        renoises sets it."""
        return None

    def shared(self) -> Mapping[str, Tensor | Module]:
        """What all rows share, by name: tables, weights, a second network. It is moved to the model's device once, and
        every call reads it from ``view.shared``."""
        return {}

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """State before the first turn, every tensor [B, ...]: the ``per_request`` parameters, and what a rule adds."""
        return {name: per_row(getattr(self, name), canvas) for name in self.per_request}

    def step(self, view: View, state: State) -> Step:
        """Decide from one forward, and return it by ``view.step``. Commits outside ``view.open`` are ignored, and
        edits outside ``view.editable``. The state's changed entries are [B, ...]."""
        raise NotImplementedError

    def propose(self, view: View, state: State) -> Step:
        """What ``decide`` and wrappers call: ``step`` for the active rows. Rows in which the cache's plan forces
        positions commit the proposals at those instead."""
        shapes, forced = view.blocks.shapes, view.forced_now
        if forced is not None:
            view = replace(view, open=view.open & view.active[:, None])
        acts = shapes.any(view.active)
        step = checked_step(self, self.step(view, state), view, state) if acts else view.step(view.canvas.no_positions)
        each = step.owner.per_candidate
        step = step.but(commit=step.commit & each(view.open))
        if self.traits.revocable:
            step = step.but(remask=step.remask & each(view.active)[:, None])
        if step.edit is not None:
            edit = step.edit & each(view.editable) & each(view.active)[:, None]
            step = step.but(edit=edit, keep_open=step.keep_open & view.active)
        if forced is None:
            return step
        forced = each(forced)
        return step.but(
            commit=step.commit | forced,
            tokens=torch.where(forced, each(view.scores.token), step.tokens),
            confidence=torch.where(forced, each(view.scores.confidence), step.confidence),
        )

    def decide(self, view: View, state: State, vocab: int) -> Step:
        """What the loop calls: ``propose``, whose step is refused (UserError) if it is no Step. vocab: how many ids
        there are."""
        step, wraps = self.propose(view, state), type(self).propose is not Sampler.propose
        if wraps:
            step = checked_step(self, step, view, state)
        checked_contents(self, step, view, vocab, wraps)
        return step

    def next_block(self, state: State, rows: Tensor) -> State:
        """The state when another block has opened in ``rows`` [B]."""

        def reset(value: Tensor, start: float) -> Tensor:
            return value.masked_fill(rows.view(-1, *[1] * (value.dim() - 1)), start)

        return state | {name: reset(state[name], start) for name, start in self.per_block.items()}

    def choose(self, view: View, owner: Owner, state: State) -> Tensor:
        """Index [B] of the candidate each row goes on with, from a view of all candidates [N]; ``state`` is [B].
        Called only when the last ``step`` made several."""
        raise NotImplementedError


def scored_masks(view: View) -> Tensor:
    """Masks of the open blocks that this forward scored [B, L]. A rule that keeps a history follows all of them, since
    a wrapper may narrow what it may commit."""
    return view.canvas.undecided & view.blocks.in_open & view.scores.scored


def ranking(scores: Scores, score: str) -> Tensor:
    """What ``score`` ranks by [B, L], higher first: ``confidence`` (the probability; ``low_confidence`` is LLaDA's
    name), ``margin`` (p1 - p2; a confidence of -1, by ``eos_last``, stays -1) or ``entropy`` (lowest first)."""
    if score == "margin":
        gap = scores.statistic("first") - scores.statistic("second")
        return torch.where(scores.confidence < 0, scores.confidence, gap)
    return -scores.statistic("entropy") if score == "entropy" else scores.confidence


def ranking_statistics(score: str) -> tuple[Statistic, ...]:
    """The statistics that ``ranking`` reads."""
    return Statistic.of(*{"margin": ("first", "second"), "entropy": ("entropy",)}.get(score, ()))
