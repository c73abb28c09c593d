"""Cut the canvas where the model predicts its end of text (EoTP of Learn2PD, arXiv 2509.25188)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from dllm.common.errors import in_choices
from dllm.common.ranking import argmax_mask, one_of
from dllm.contract import Need, Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.traits import EosTraits
from dllm.parts.eos.base import EndOfText, after_first


class EoTP(EndOfText):
    """First tier: cut after the leftmost EOS that the rule itself accepted this turn (fixed schedules accept nothing).

    Second tier, if the first finds nothing: cut after the most confident EOS proposal among all masked positions (scope
    ``suffix``) or those of the open blocks (``block``, as the published cached loops do), if its confidence is at least
    ``minimum``. That position is usually still masked, and is decided later like any other. In infilling, nothing is
    cut before what is given.
    """

    traits = EosTraits(at_once=True, shrinks=True, fills=False)

    def __init__(self, scope: Literal["suffix", "block"] = "suffix", minimum: float = 0.0) -> None:
        in_choices("eos.scope", scope, ("suffix", "block"))
        self.scope, self.minimum = scope, minimum

    def needs(self) -> tuple[Need, ...]:
        return (Need(self.scope),)

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        before = (candidates.masked | step.commit) & candidates.tail
        scores = view.scores
        says = scores.scored & before & (candidates.columns < candidates.end[:, None]) & one_of(scores.token, ends)
        if self.scope == "block":
            says = says & view.blocks.in_open
        accepted = says & False if step.accepted is None else step.accepted & step.commit & says
        likely = argmax_mask(view.scores.confidence, says & (view.scores.confidence >= self.minimum))
        where = torch.where(accepted.any(1, keepdim=True), accepted, likely)
        end, has_end = after_first(candidates, where)
        return candidates.stop_at(end, has_end & (end < candidates.end), attended=False)
