"""Commit at a low threshold, then remask what the other tokens do not confirm (WINO, arXiv 2507.18578)."""

from __future__ import annotations

from typing import Any

from dllm.common.ranking import best, top
from dllm.contract import Need, State, Step, View
from dllm.errors import UserError, in_range, name_of
from dllm.samplers.base import Sampler
from dllm.setting import Setting


class WINO(Sampler):
    """Commit what exceeds ``threshold``, at most min(max(0.7 * masks, 5), 20) positions. If nothing does, commit the
    best one. Shadow rows score the block's committed positions again: each is a mask that sees everything but the
    token. Tokens below ``back_threshold`` are remasked, the least likely first, and fewer than the turn commits.
    """

    revocable = True
    per_request = ("threshold", "back_threshold")

    def __init__(self, threshold: Any = 0.7, back_threshold: Any = 0.9) -> None:
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        in_range("sampler.back_threshold", back_threshold, 0.0, 1.0)
        self.threshold, self.back_threshold = threshold, back_threshold

    def needs(self) -> tuple[Need, ...]:
        return (Need(statistics=frozenset({"shadow"})),)

    def check(self, setting: Setting) -> None:
        if setting.model.prediction_shift:
            raise UserError(
                f"sampler={name_of(self)} scores a committed token at its own position, but this model predicts it "
                "from the one before (Dream). Use sampler=saber, which remasks too."
            )
        if setting.sampling.guidance:
            raise UserError(f"sampler={name_of(self)}'s shadow rows are not guided: set sampling.guidance=0.")

    def step(self, view: View, state: State) -> Step:
        confidence = view.scores.confidence
        accepted = view.open & (confidence > state["threshold"][:, None])
        cap = (0.7 * view.open.sum(1)).long().clamp(5, 20)
        accepted = top(confidence, accepted, cap)
        commit = accepted | (best(confidence, view.open) & ~accepted.any(1, keepdim=True))
        committed = view.blocks.in_block & view.canvas.revisable
        shadow = view.scores.stat("shadow")
        doubtful = committed & (shadow.exp() < state["back_threshold"][:, None])
        return view.step(commit, accepted=accepted, remask=top(-shadow, doubtful, commit.sum(1) - 1))
