"""Commit the largest set that is surer as a whole than any rival of it (Fast-dLLM++, arXiv 2606.02955).

Whatever their dependence, n tokens of errors e(1) <= ... <= e(n) are all right with probability 1 - (e(1) + ... + e(n))
at least (Fréchet's inequality), and another joint answer has probability e(n) at most.
"""

from __future__ import annotations

from dllm.common.errors import in_range
from dllm.common.ranking import rank
from dllm.contract import State, Step, View
from dllm.contract.canvas import PerRequest
from dllm.contract.traits import SamplerTraits
from dllm.parts.samplers.base import Sampler


class Frechet(Sampler):
    """Commit, by confidence c(1) >= c(2) >= ... with the errors e(i) = 1 - c(i), the longest
    prefix for which e(1) + ... + e(n) + e(n) < 1 - ``margin``, and always the first.

    Where ``factor`` counts the weakest error n + 1 times, this rule counts each error once, and the weakest twice.
    """

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=True, ranks_by="confidence")

    per_request = ("margin",)

    def __init__(self, margin: PerRequest = 0.25) -> None:
        in_range("sampler.margin", margin, 0.0, 1.0, "1 is one token per forward.")
        self.margin = margin

    def step(self, view: View, state: State) -> Step:
        ranked, place = rank(view.scores.confidence, view.open)
        error = 1 - ranked  # infinite where nothing is open
        passed = (error.cumsum(1) + error < 1 - state["margin"][:, None]).sum(1)  # each rank fails if the last did
        count = passed.clamp(min=1)
        return view.step(view.open & (place < count[:, None]), accepted=view.open & (place < passed[:, None]))
