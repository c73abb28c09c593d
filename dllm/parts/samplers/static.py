"""Commit a fixed number of positions per forward, the best-scoring first (LLaDA, arXiv 2502.09992, App. B.4)."""

from __future__ import annotations

from torch import Tensor

from dllm.common.errors import in_choices
from dllm.common.noise import uniform
from dllm.common.ranking import top_k_mask
from dllm.contract import Need, State, Step, View
from dllm.parts.samplers.base import ranking, ranking_statistics
from dllm.parts.samplers.scheduled import Scheduled


class Static(Scheduled):
    """Commit as many positions as the schedule says (``Scheduled``), in the order of ``score``: ``low_confidence``
    (highest probability first), ``margin`` (largest p1 - p2 first), ``entropy`` (lowest first) or ``random``.
    """

    def __init__(self, steps: int | None = None, score: str = "low_confidence", per_step: int = 1) -> None:
        in_choices("sampler.score", score, ("low_confidence", "random", "margin", "entropy"))
        super().__init__(steps, per_step)
        self.score = score
        plain, ranks = score != "random", score in ("low_confidence", "margin")
        order = {"low_confidence": "confidence", "entropy": "entropy"}.get(score, "")
        self.traits = self.traits.but(
            stateless=plain, deterministic=plain, by_confidence=ranks, ranks_by=order, thresholds=False
        )

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=ranking_statistics(self.score)),)

    def step(self, view: View, state: State) -> Step:
        return view.step(top_k_mask(self.rate(view), view.open, self.quota(view, state)))

    def rate(self, view: View) -> Tensor:
        """The ranking score [B, L], higher first."""
        if self.score == "random":
            return uniform(view.canvas.seed[:, None], view.canvas.columns, view.blocks.turn[:, None], 1)
        return ranking(view.scores, self.score)
