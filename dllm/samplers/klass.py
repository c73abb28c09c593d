"""Commit what is confident and has stopped changing (KLASS, arXiv 2511.05664)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dllm.blocks.base import Blocks
from dllm.canvas import Canvas
from dllm.errors import UserError
from dllm.samplers.base import Sampler, State, Step, View, best, in_range, per_row
from dllm.scores import Need, Scores


class KLASS(Sampler):
    """Commit an open position when its confidence exceeds ``threshold`` and the divergence KL(p_t || p_t-1) of its
    distribution stayed below ``kl`` nats in each of the last ``history`` turns; if none qualifies, the best one.

    The previous distributions of the block are kept as log-probabilities [B, L, V] of the columns scored, so this is
    for moderate vocabularies or short canvases. History starts anew in every block.
    """

    stateless = False

    def __init__(self, threshold: Any = 0.9, kl: Any = 0.01, history: int = 2) -> None:
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        in_range("sampler.kl", kl, 0.0, float("inf"))
        if history < 1:
            raise UserError(f"sampler.history={history} must be at least 1 turn.")
        self.threshold, self.kl, self.history = threshold, kl, history

    def needs(self) -> tuple[Need, ...]:
        return (Need(logits=True),)

    def start(self, canvas: Canvas, blocks: Blocks) -> State:
        calm = torch.zeros_like(canvas.tokens)
        return {
            "threshold": per_row(self.threshold, canvas), "kl": per_row(self.kl, canvas), "calm": calm,
            "block": torch.zeros_like(canvas.start) - 1, "before": torch.zeros(*calm.shape, 0, dtype=torch.float64),
        }  # fmt: skip

    def step(self, view: View, state: State) -> Step:
        now, seen = log_probabilities(view.scores), view.scores.known
        fresh = (state["block"] != view.blocks.number)[:, None] | ~seen
        before = state["before"] if state["before"].shape[-1] else torch.zeros_like(now)
        moved = (now.exp() * (now - before)).nan_to_num(0.0).sum(-1)
        calm = torch.where(fresh | (moved >= state["kl"][:, None]), 0, state["calm"] + 1)
        confidence = view.scores.confidence
        accepted = view.open & (confidence > state["threshold"][:, None]) & (calm >= self.history)
        commit = accepted | (best(confidence, view.open) & ~accepted.any(1, keepdim=True))
        return Step(commit, accepted=accepted, state={"calm": calm, "before": now, "block": view.blocks.number})


def log_probabilities(scores: Scores) -> Tensor:
    """log softmax of the raw logits laid out by column [B, L, V], zero where nothing was scored."""
    assert scores.logits is not None and scores.rows is not None
    logs = scores.logits.double().log_softmax(-1)
    out = logs.new_zeros(len(logs), scores.known.shape[1] + 1, logs.shape[-1])
    return out.scatter(1, scores.rows.unsqueeze(-1).expand_as(logs), logs)[:, :-1]
