"""Which tokens of an open block are masked again for a second try (token-to-mask, arXiv 2604.18738 and 2605.26436).

The rule is that of synsis/remasked_DLM@1fe25ab: remask/modeling_remask.py (_token_edit_step).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from dllm.common.errors import Refusal, in_choices, in_range
from dllm.common.ranking import top_k_mask
from dllm.contract import State, View
from dllm.contract.canvas import Canvas
from dllm.contract.readouts import Statistic

# Thresholds of the published code, by test; its README has 0.1 for low_prob.
THRESHOLDS = {"low_prob": 0.5, "mirrored": 0.9, "drop": 0.3}


@dataclass(frozen=True)
class Doubts:
    """A test of the tokens that a block has. p: what the model now gives the token that a position shows; v and c: its
    proposal there and the probability of that. A token is suspect where

    - ``low_prob``: p < threshold; the lowest p first,
    - ``mirrored``: v is another token and c > threshold; the highest c first,
    - ``drop``: p has fallen by more than the threshold since the forward before; the deepest fall first.

    A column is masked again ``budget`` times in its block at most, and a forward masks at most the share ``ratio`` of
    the tokens that the block has, but one at least; of equals the lowest column first.
    """

    test: str  # ``low_prob``, ``mirrored`` or ``drop``; papers: low_prob, t2t_remask, logit_diff
    threshold: float  # a probability, or a fall of one
    budget: int  # papers: max_remask_per_pos
    ratio: float  # papers: max_remask_ratio

    @staticmethod
    def of(test: str, threshold: float | None, budget: int, ratio: float) -> Doubts | None:
        """From a sampler's options; None where it replaces tokens. UserError for a value outside its range."""
        in_choices("sampler.repair", test, ("edit", *THRESHOLDS))
        in_range("sampler.remask_threshold", threshold, 0.0, 1.0)
        in_range("sampler.budget", budget, 1, advice="sampler.repair=edit masks nothing again.")
        in_range("sampler.ratio", ratio, 0.0, 1.0, "1 bounds nothing.")
        if test == "edit":
            if threshold is not None:
                raise Refusal(
                    "{sampler.remask_threshold}: {sampler.repair=edit} replaces tokens by "
                    "{sampler.edit_threshold:name}. Set {sampler.repair:name} to low_prob, mirrored or drop, or this "
                    "to {null}.",
                    [threshold],
                )
            return None
        return Doubts(test, THRESHOLDS[test] if threshold is None else threshold, budget, ratio)

    @property
    def reads(self) -> tuple[Statistic, ...]:
        """What it reads of a forward."""
        return () if self.test == "mirrored" else Statistic.of("current")

    def start(self, canvas: Canvas) -> State:
        """remasks [B, L]: how often the block has masked each column again. before [B, L], of ``drop`` alone: what the
        last forward gave the token that a column shows now (inf below 0: there was none)."""
        state = {"remasks": torch.zeros_like(canvas.tokens)}
        if self.test == "drop":
            state["before"] = torch.full_like(canvas.tokens, -inf, dtype=torch.float64)
        return state

    def most_turns(self, columns: Tensor, post: int) -> Tensor:
        """Turns [B] of a block of ``columns`` [B] at most: each of those with masks fills one, and counts start again
        where all was masked again, for which a forward without masks is spent, one of ``post``."""
        return post + (post + 1) * (1 + self.budget) * columns

    def remask(self, view: View, state: State, among: Tensor) -> tuple[Tensor, State]:
        """The columns [B, L] of ``among`` that are masked again, and what is remembered. Both counts and probabilities
        start with the forward that finds no token in the block."""
        decided = view.editable
        begins = ~decided.any(1, keepdim=True)
        remasks = state["remasks"].masked_fill(begins, 0)
        doubt, bar, remembered = self._doubt(view, state, begins)
        suspect = among & (doubt > bar) & (remasks < self.budget)
        most = (self.ratio * decided.sum(1)).floor().long().clamp(min=1)
        again = top_k_mask(doubt, suspect, most)
        return again, remembered | {"remasks": remasks + again}

    def _doubt(self, view: View, state: State, begins: Tensor) -> tuple[Tensor, float, State]:
        """How doubtful each token is [B, L], the bound above which it is suspect, and what else is remembered."""
        proposed, confidence = view.scores.token, view.scores.confidence
        if self.test == "mirrored":
            return confidence.masked_fill(proposed == view.canvas.tokens, -inf), self.threshold, {}
        likely = view.scores.statistic("current").exp()
        if self.test == "low_prob":
            return -likely, -self.threshold, {}
        now = torch.where(view.editable, likely, confidence).masked_fill(begins, -inf)
        return state["before"].masked_fill(begins, -inf) - likely, self.threshold, {"before": now}
