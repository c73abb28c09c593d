"""Parts as a user writes them: nothing is said of them but what they do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dllm.parts import (
    Canvas,
    EndOfText,
    EosTraits,
    Need,
    Sampler,
    SamplerTraits,
    Schedule,
    State,
    Statistic,
    Step,
    View,
    Wrapper,
    after_first,
    answer_ends,
    argmax_mask,
    top_k_mask,
)


class Above(Sampler):
    """A threshold on the confidence."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=True, ranks_by="confidence")

    per_request = ("threshold",)

    def __init__(self, threshold: Any = 0.9) -> None:
        self.threshold = threshold

    def step(self, view: View, state: State) -> Step:
        accepted = view.open & (view.scores.confidence >= state["threshold"][:, None])
        return view.step(accepted | argmax_mask(view.scores.confidence, view.open), accepted=accepted)


class Surest(Sampler):
    """Two positions a turn, the surest first."""

    traits = SamplerTraits(
        stateless=True, deterministic=True, by_confidence=True, ranks_by="confidence", thresholds=False
    )

    def step(self, view: View, state: State) -> Step:
        return view.step(top_k_mask(view.scores.confidence, view.open, torch.full_like(view.canvas.start, 2)))


class Calmest(Sampler):
    """Two positions a turn, of the least entropy."""

    traits = SamplerTraits(
        stateless=True, deterministic=True, by_confidence=False, ranks_by="entropy", thresholds=False
    )

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=Statistic.of("entropy")),)

    def step(self, view: View, state: State) -> Step:
        return view.step(
            top_k_mask(-view.scores.statistic("entropy"), view.open, torch.full_like(view.canvas.start, 2))
        )


class Alternate(Sampler):
    """Every other position first: the example of ``docs/add_a_sampler.md``."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=False, thresholds=False)

    def step(self, view: View, state: State) -> Step:
        even = view.open & ((view.canvas.columns - view.blocks.begin[:, None]) % 2 == 0)
        turn = even | (view.open & ~even.any(1, keepdim=True))
        return view.step(argmax_mask(view.scores.confidence, turn))


class Drawing(Sampler):
    """A position at random."""

    traits = SamplerTraits(stateless=True, deterministic=False, by_confidence=False)

    def step(self, view: View, state: State) -> Step:
        return view.step(argmax_mask(torch.rand(view.open.shape, dtype=torch.float64), view.open))


class Steady(Sampler):
    """What was proposed two turns in a row, or the best: it remembers."""

    traits = SamplerTraits(stateless=False, deterministic=True, by_confidence=False, thresholds=False)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        return {"before": torch.full_like(canvas.tokens, -1)}

    def step(self, view: View, state: State) -> Step:
        same = view.open & (view.scores.token == state["before"])
        return view.step(same | argmax_mask(view.scores.confidence, view.open), state={"before": view.scores.token})


class Rising(Above):
    """``Above`` without its best: the commonest first mistake."""

    def step(self, view: View, state: State) -> Step:
        accepted = view.open & (view.scores.confidence > state["threshold"][:, None])
        return view.step(accepted, accepted=accepted)


class Patient(Surest):
    """Commits in every ninth turn of a row alone."""

    def step(self, view: View, state: State) -> Step:
        step = super().step(view, state)
        return step.but(commit=step.commit & (view.blocks.turn % 9 == 0)[:, None])


class Undoing(Surest):
    """Takes back what it committed a turn before."""

    traits = Surest.traits.but(revocable=True)

    def step(self, view: View, state: State) -> Step:
        undo = view.canvas.revisable & view.blocks.in_block & (view.blocks.turn % 2 == 0)[:, None]
        return view.step(argmax_mask(view.scores.confidence, view.open), remask=undo)


class Twice(Wrapper):
    """A rule around a rule that commits one position of its own besides."""

    def propose(self, view: View, state: State) -> Step:
        step = super().propose(view, state)
        left = view.canvas.undecided & view.scores.scored & ~step.owner.per_row(step.commit)
        return step.but(commit=step.commit | step.owner.per_candidate(argmax_mask(view.scores.confidence, left)))


class CutFirst(EndOfText):
    """Ends a row behind its first end of text at once."""

    traits = EosTraits(at_once=True, shrinks=True, fills=True)

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        end, found = after_first(candidates, answer_ends(candidates, ends))
        return candidates.stop_at(end, found, attended=False)


class Says(Sampler):
    """Returns whatever a test hands to it: ``commit``, and the rest of a step."""

    traits = SamplerTraits(stateless=False, deterministic=True, by_confidence=False)

    def __init__(self, commit: Tensor | None = None, **rest: Any) -> None:
        self.commit, self.rest = commit, rest

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        return {"seen": torch.zeros_like(canvas.start)}

    def step(self, view: View, state: State) -> Step:
        return view.step(view.open if self.commit is None else self.commit, **self.rest)
