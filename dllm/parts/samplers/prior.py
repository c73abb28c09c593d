"""Weigh the confidence by how much is known around (certainty prior of d2Cache, arXiv 2509.23094)."""

from __future__ import annotations

from dataclasses import replace

from dllm.common.density import certainty_density
from dllm.common.errors import Refusal, in_range, name_of
from dllm.contract import State, Step, View
from dllm.contract.needs import read_of_logits
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.wrapper import Wrapper


class Prior(Wrapper):
    """Commit as the inner rule does on confidence * D, where D is the share of a position's surroundings that is known:
    a Gaussian mean of ``sigma`` columns over prompt and answer (``certainty_density``). It then decodes roughly from
    what is known outwards, so blocks are no longer needed.

    over_thresholds: take rules that compare the confidence with a threshold, too. The product is smaller, so their
    thresholds become stricter.
    """

    def __init__(self, inner: Sampler, sigma: float = 10.0, over_thresholds: bool = False) -> None:
        in_range("sampler.sigma", sigma, 0.1, advice="It counts columns.")
        traits = inner.traits
        several = traits.revocable or traits.edits or traits.branches
        if several or not traits.by_confidence or read_of_logits(inner.needs()):
            raise Refusal(
                "{sampler} changes confidences only, and those of one canvas, so {sampler/inner} cannot use them. "
                "Use an inner sampler that ranks by confidence: static, pc, or dream with "
                "{sampler.inner.alg=maskgit_plus}. credit, prophet, freedave and frontier go around it: "
                "{sampler=credit} {sampler/inner=prior}.",
                [name_of(self), name_of(inner)],
            )
        if not over_thresholds and inner.traits.thresholds:
            raise Refusal(
                "{sampler} makes every confidence smaller, and {sampler/inner} compares it with a threshold, which "
                "becomes stricter. Use static, or allow it by {sampler.over_thresholds=true}. (A rule of your own "
                "that compares confidences only with each other says thresholds=False in its traits.)",
                [name_of(self), name_of(inner)],
            )
        super().__init__(inner)
        self.traits = self.traits.but(stateless=inner.traits.stateless, by_confidence=False, beyond_block=True)
        self.sigma, self.over_thresholds = sigma, over_thresholds

    def propose(self, view: View, state: State) -> Step:
        canvas, scores = view.canvas, view.scores
        density = certainty_density(~canvas.masked, canvas.start, canvas.initial_end, self.sigma)
        weighed = replace(scores, confidence=scores.confidence * density)
        step = super().propose(replace(view, scores=weighed), state)
        return view.restated(step)
