"""Put off what attends to uncertain tokens of the same turn (after ADAS, arXiv 2606.10829)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dllm.common.errors import Refusal, in_range, name_of
from dllm.contract import Need, Scores, State, Step, View
from dllm.contract.needs import read_of_logits
from dllm.contract.readouts import AttentionMap, AttentionWeights
from dllm.parts.samplers.base import TOO_MANY_LAYERS, Sampler
from dllm.parts.samplers.wrapper import Wrapper


class Adas(Wrapper):
    """Commit as ``inner`` ranks and stops, but a position's error 1 - c (for rules of entropy: its entropy) counts a
    debt more: ``weight`` times its attention to each position chosen before it, times that one's own error.

    Positions are chosen one by one, each time the one of least error and debt; a certain position adds no debt. layers:
    attention is the mean over that many of the last layers (None: a quarter of them).
    """

    clashes = (TOO_MANY_LAYERS,)

    def __init__(self, inner: Sampler, weight: float = 1.0, layers: int | None = None) -> None:
        in_range("sampler.weight", weight, 0.0, 1e6, "0 is the inner rule.")
        if not ranks_alone(inner):
            raise Refusal(
                "{sampler} adds to the error by which a rule ranks and stops, and {sampler/inner} with these options "
                "goes by something else. Use an inner sampler that goes by confidence or entropy alone, commits the "
                "first of that order and remembers nothing: confidence, easing, factor, frechet, eb, dparallel, "
                "static or dream. Wrappers go around it: {sampler=prophet} {sampler/inner=adas}. (A rule of your own "
                "says ranks_by in its traits.)",
                [name_of(self), name_of(inner)],
            )
        in_range("sampler.layers", layers, 1, advice="They count from the last one; {null} is the last quarter.")
        super().__init__(inner)
        ranks_by = inner.traits.ranks_by
        self.statistic = None if ranks_by == "confidence" else ranks_by
        self.traits = self.traits.but(stateless=inner.traits.stateless, by_confidence=False, syncs=True)
        self.weight, self.layers, self.attention = weight, layers, AttentionMap(layers)

    def needs(self) -> tuple[Need, ...]:
        return (*super().needs(), Need(reads=(self.attention,)))

    def propose(self, view: View, state: State) -> Step:
        scores = view.scores
        # No debt is ever negative, so the rule chooses no more than without any: later ones need not be known.
        rounds = int((super().propose(view, state).commit & view.open).sum(1).max())
        error = 1 - scores.confidence if self.statistic is None else scores.statistic(self.statistic)
        score = scores.confidence if self.statistic is None else -error
        charged = self.weight * debts(scores.of(self.attention), score, error, view.open, self.weight, rounds)
        step = super().propose(replace(view, scores=self._with(scores, score - charged)), state)
        return view.restated(step)

    def _with(self, scores: Scores, score: Tensor) -> Scores:
        if self.statistic is None:
            return replace(scores, confidence=score)
        return replace(scores, statistics=scores.statistics | {self.statistic: -score})


def ranks_alone(rule: Sampler) -> bool:
    """Whether the rule commits the first positions by confidence or by one statistic, and reads nothing else that
    follows from logits."""
    traits, more = rule.traits, {*read_of_logits(rule.needs())} - {rule.traits.ranks_by}
    does_more = traits.revocable or traits.edits or traits.branches or traits.commits_ahead or traits.lookahead
    return bool(traits.ranks_by) and traits.stateless and traits.deterministic and not (more or does_more)


def debts(
    attention: AttentionWeights, score: Tensor, error: Tensor, open_: Tensor, weight: float, rounds: int
) -> Tensor:
    """What each open position [N, L] owes when ``rounds`` have been chosen, each of the highest score - weight * debt
    (of equals the first): a[k, i] error[i] for every i chosen before k."""
    score, error, remaining = (attention.at_masks(values) for values in (score, error, open_))
    among, debt = attention.between_masks(attention.weights), torch.zeros_like(score)
    for _ in range(rounds):
        at = torch.where(remaining, score - weight * debt, -torch.inf).argmax(1, keepdim=True)
        remaining = remaining.scatter(1, at, False)
        increase = among.gather(2, at[:, None].expand(-1, among.shape[1], 1)).squeeze(2) * error.gather(1, at)
        debt = torch.where(remaining, debt + increase, debt)
    return attention.scatter_to(debt, torch.zeros_like(open_, dtype=debt.dtype))
