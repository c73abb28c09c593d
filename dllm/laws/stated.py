"""What a rule states in its traits, tried in every turn of a decode. B rows, N candidates, L columns.

A false claim is silent elsewhere: ``freedave`` drafts wrongly around a rule that draws, ``adas`` and ``prior`` around
one that ranks by something else. So each turn is taken again on other scores, on which a true claim must hold: real
ones let confidence and entropy agree, drawn ones do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from dllm.common.errors import name_of
from dllm.common.noise import uniform
from dllm.contract import Scores, State, Step, View
from dllm.laws.claims import Trial, holds
from dllm.laws.decodes import ending, turns_of_rows
from dllm.parts.samplers.base import Sampler

_LATER = 7  # turns between the two at which a rule that draws by the turn's number gives another step


def traits_hold(trial: Trial) -> None:
    """A rule does what its traits state: ``deterministic``, ``by_confidence``, ``ranks_by``, and ``thresholds=False``
    if it is deterministic."""
    rule = copy(trial.parts.sampler)
    kind = type(rule)
    names = {"__module__": kind.__module__, "__init__": kind.__init__}
    object.__setattr__(rule, "__class__", type(kind.__name__, (TestedByTurn, kind), names))
    parts = replace(trial.parts, sampler=rule)
    for _ in ending(turns_of_rows(trial.network, parts, trial.requests, trial.sampling)):
        pass


class TestedByTurn:
    """Mixed into a rule: every turn is taken again, and compared with what the traits state."""

    def propose(self, view: View, state: State) -> Step:
        step: Step = super().propose(view, state)  # type: ignore[misc]
        if bool(view.open.any()):
            for sentence, holding in _claims(self, super(), view, state, step):  # type: ignore[arg-type]
                holds(holding, f"{name_of(self)} states {sentence}")
        return step


def _claims(rule: Sampler, untried: Sampler, view: View, state: State, step: Step) -> Iterator[tuple[str, bool]]:
    """Each claim that the rule makes, and whether this turn confirms it. untried: the rule without ``TestedByTurn``."""
    traits, random_view = rule.traits, replace(view, scores=_random_scores(view))

    def on(other: View) -> Step:
        return untried.propose(other, state)

    if traits.deterministic:
        yield "deterministic=True, and decides otherwise on the same scores", _alike(on(view), step)
    if traits.deterministic and traits.stateless:
        later = replace(view, blocks=replace(view.blocks, turn=view.blocks.turn + _LATER))
        yield "deterministic=True, and decides otherwise in a later turn", _alike(on(later), step)
    if traits.by_confidence:
        sunk = _with(random_view, random_view.scores.confidence.masked_fill(_noise(view, 8) < 1 / 3, -1.0))
        yield "by_confidence=True, and commits a confidence of -1 before others", _sinks(sunk, on(sunk))
    if traits.ranks_by:
        first = _begins(view, step, traits.ranks_by) and _begins(random_view, on(random_view), traits.ranks_by)
        yield f"ranks_by={traits.ranks_by!r}, and commits another position before the first in that order", first
    if traits.deterministic and not traits.thresholds:
        halved = _with(random_view, random_view.scores.confidence / 2)
        yield (
            "thresholds=False, and decides otherwise where all confidences are halved",
            _alike(on(random_view), on(halved)),
        )


def _noise(view: View, stream: int) -> Tensor:
    return uniform(view.canvas.seed[:, None], view.canvas.columns, view.blocks.turn[:, None], stream)


def _random_scores(view: View) -> Scores:
    """Scores whose numbers have nothing to do with each other."""
    scores = view.scores
    statistics = {
        name: _noise(view, number) if value.is_floating_point() and value.shape == scores.scored.shape else value
        for number, (name, value) in enumerate(sorted(scores.statistics.items()), 9)
    }
    return replace(scores, confidence=_noise(view, 7) ** 0.25, statistics=statistics)  # a third of them reach 0.9


def _with(view: View, confidence: Tensor) -> View:
    return replace(view, scores=replace(view.scores, confidence=confidence))


def _alike(step: Step, other: Step) -> bool:
    """Whether two steps commit the same tokens in the same rows."""
    if step.commit.shape != other.commit.shape or not torch.equal(step.commit, other.commit):
        return False
    return torch.equal(step.tokens[step.commit], other.tokens[step.commit])


def _sinks(view: View, step: Step) -> bool:
    """Whether a row's first candidate commits a confidence of -1 only if it leaves no other open. The others may be
    drafts, which a forward judges."""
    commit, sunk = step.owner.per_row(step.commit), view.scores.confidence < 0
    open_ = view.open & view.active[:, None]
    early = (commit & open_ & sunk).any(1)
    return not bool((early & (open_ & ~sunk & ~commit).any(1)).any())


def _begins(view: View, step: Step, name: str) -> bool:
    """Whether what the step commits in the current block, and in later ones that are open, begins the order by
    ``name``."""
    rate = view.scores.confidence if name == "confidence" else -view.scores.statistic(name)
    commit, open_ = step.owner.per_row(step.commit), view.open & view.active[:, None]
    return all(
        bool((_most(rate, part & ~commit) <= -_most(-rate, part & commit)).all())
        for part in (open_ & view.blocks.in_block, open_ & ~view.blocks.in_block)
    )


def _most(rate: Tensor, among: Tensor) -> Tensor:
    """The largest rate of each row [B] among some positions; -inf for a row without any."""
    return torch.where(among, rate, -torch.inf).amax(1)
