"""Commit confident positions whose distribution has stopped changing (KLASS, arXiv 2511.05664)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dllm.canvas import Canvas
from dllm.common.ranking import best
from dllm.contract import Need, Scores, State, Step, View
from dllm.errors import in_range
from dllm.samplers.base import Sampler
from dllm.traits import Schedule


class KLASS(Sampler):
    """Commit an open position if its confidence exceeds ``threshold`` and the divergence KL(p_t || p_t-1) of its
    distribution stayed below ``kl`` nats in each of the last ``history`` turns. If none qualifies, commit the best one.

    The state holds the block's last logits [B, W, V] in the model's precision, where W is the width of the widest
    possible block: 8 MB a row for 32 positions, 126,000 tokens and bfloat16. History starts anew in every block, and at
    a position that a cache left out for a turn.
    """

    stateless = False
    per_request = ("threshold", "kl")

    def __init__(self, threshold: Any = 0.9, kl: Any = 0.01, history: int = 2) -> None:
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        in_range("sampler.kl", kl, 0.0)
        in_range("sampler.history", history, 1, advice="It counts turns.")
        self.threshold, self.kl, self.history = threshold, kl, history

    def needs(self) -> tuple[Need, ...]:
        return (Need(logits=True),)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """calm [B, L]: turns since a position's distribution last moved (0: now; -1: not scored in the last turn).
        before [B, W, V]: logits of the last turn by place in the block. block [B]: its number."""
        width = min(len(canvas.columns), blocks.widest(len(canvas.columns)))
        # Only the first scores tell the vocabulary and the precision. Until then: no token, in the type that every
        # other one absorbs.
        nothing = canvas.masked.new_zeros(len(canvas.start), width, 0)
        return super().start(canvas, blocks) | {
            "before": nothing, "calm": torch.zeros_like(canvas.tokens) - 1, "block": torch.zeros_like(canvas.start) - 1,
        }  # fmt: skip

    def step(self, view: View, state: State) -> Step:
        place = view.canvas.columns - view.blocks.begin[:, None]
        now = in_block(view.scores, place, state["before"].shape[1])
        before = state["before"] if state["before"].shape[-1] else now
        moved = divergence(now, before).gather(1, place.clamp(0, now.shape[1] - 1))
        known = (state["calm"] >= 0) & (state["block"] == view.blocks.number)[:, None]
        calm = torch.where(known & (moved < state["kl"][:, None]), state["calm"] + 1, 0)
        calm = calm.masked_fill(~(view.scores.scored & view.blocks.in_block), -1)
        confidence = view.scores.confidence
        accepted = view.open & (confidence > state["threshold"][:, None]) & (calm >= self.history)
        commit = accepted | (best(confidence, view.open) & ~accepted.any(1, keepdim=True))
        return view.step(commit, accepted=accepted, state={"calm": calm, "before": now, "block": view.blocks.number})


def in_block(scores: Scores, place: Tensor, width: int) -> Tensor:
    """The raw logits [B, W, V] by ``place`` [B, L] of a column in its block, zero where nothing was scored."""
    assert scores.logits is not None, "KLASS without logits"
    logits, columns, length = scores.logits.values, scores.logits.columns, place.shape[1]
    at = place.gather(1, columns.clamp(max=length - 1))
    elsewhere = (columns == length) | (at < 0) | (at >= width)
    out = logits.new_zeros(len(logits), width + 1, logits.shape[-1])
    return out.scatter(1, at.masked_fill(elsewhere, width).unsqueeze(-1).expand_as(logits), logits)[:, :-1]


def divergence(now: Tensor, before: Tensor) -> Tensor:
    """KL(softmax(now) || softmax(before)) in nats over the last dimension. Tokens at -inf in both add nothing.

    Computed in float32 or wider: its rounding, some 1e-6 nats over a vocabulary, is far below any useful ``kl``.
    """
    precision = torch.promote_types(now.dtype, torch.float32)
    p, q = now.to(precision).log_softmax(-1), before.to(precision).log_softmax(-1)
    return (p.exp() * (p - q)).nan_to_num(0.0).sum(-1)
