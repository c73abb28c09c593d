"""Commit confident positions whose distribution has stopped changing (KLASS, arXiv 2511.05664).

The rule is that of shkim0116/KLASS@ad87ecb: src/model/llada_klass.py (stable_confident_decode), dream_klass.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dllm.common.errors import in_choices, in_range
from dllm.common.ranking import argmax_mask, in_float64, top_k_mask
from dllm.contract import Need, Scores, State, Step, View
from dllm.contract.canvas import Canvas, PerRequest
from dllm.contract.readouts import AllLogits
from dllm.contract.traits import Schedule
from dllm.parts.samplers.scheduled import Scheduled


class KLASS(Scheduled):
    """Commit an open position if its confidence exceeds ``threshold`` and the divergence KL(p_t || p_t-1) of its
    distribution stayed below ``kl`` nats in each of the last ``history`` forwards; not before forward ``history`` of
    the block. strategy: commit ``all`` that qualify, the most confident (``max_conf``), or the one that moved least
    (``min_kl``). If none qualifies, commit the most confident ones, as many as the fixed schedule of ``steps`` says
    (None: one).

    since: a position's history begins with the first forward of the ``answer`` (published), or of its ``block``. The
    state holds the last logits of these columns [B, W, V] in the model's precision: 8 MB a row for 32 columns, 126,000
    tokens and bfloat16. A position that a cache left out for a forward begins again.
    """

    traits = Scheduled.traits.but(stateless=False, by_confidence=True)
    per_request = ("threshold", "kl")

    def __init__(
        self,
        threshold: PerRequest = 0.9,
        kl: PerRequest = 0.01,
        history: int = 2,
        strategy: str = "all",
        since: str = "answer",
        steps: int | None = None,
    ) -> None:
        super().__init__(steps)
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        in_range("sampler.kl", kl, 0.0)
        in_range("sampler.history", history, 1, advice="It counts forwards.")
        in_choices("sampler.strategy", strategy, ("all", "max_conf", "min_kl"))
        in_choices("sampler.since", since, ("answer", "block"))
        self.threshold, self.kl, self.history, self.strategy, self.since = threshold, kl, history, strategy, since

    def needs(self) -> tuple[Need, ...]:
        return (Need("block" if self.since == "block" else "suffix", reads=(AllLogits(),)),)

    def turns(self, canvas: Canvas) -> None:
        """None: the scores decide."""

    @property
    def per_block(self) -> Mapping[str, float]:
        return {"calm": -1} if self.since == "block" else {}

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """calm [B, L]: forwards since a position's distribution last moved (0: now; -1: not scored in the last one).
        before [B, W, V]: logits of the last forward."""
        length = len(canvas.columns)
        width = min(length, blocks.widest(length)) if self.since == "block" else length
        # Only the first scores tell the vocabulary and the precision. Until then: no token, in the type that every
        # other one absorbs.
        nothing = canvas.masked.new_zeros(len(canvas.start), width, 0)
        return super().start(canvas, blocks) | {"before": nothing, "calm": torch.zeros_like(canvas.tokens) - 1}

    def step(self, view: View, state: State) -> Step:
        scores, confidence = view.scores, view.scores.confidence
        place = self._places(view)
        now = in_block(scores, place, state["before"].shape[1])
        before = state["before"] if state["before"].shape[-1] else now
        moved = divergence(now, before).gather(1, place.clamp(0, now.shape[1] - 1))
        calm = torch.where((state["calm"] >= 0) & (moved < state["kl"][:, None]), state["calm"] + 1, 0)
        followed = view.blocks.in_block if self.since == "block" else view.canvas.undecided
        calm = calm.masked_fill(~(scores.scored & followed), -1)
        ready = view.open & (confidence > state["threshold"][:, None]) & (calm >= self.history)
        accepted = self._select(ready & (view.block_step >= self.history - 1)[:, None], confidence, moved)
        count = torch.where(accepted.any(1), 0, self.quota(view, state).clamp(min=1))
        commit = accepted | top_k_mask(confidence, view.open, count)
        return view.step(commit, accepted=accepted, state={"calm": calm, "before": now})

    def _places(self, view: View) -> Tensor:
        """Where in the state each column [B, L] is."""
        columns = view.canvas.columns
        return view.canvas.positions if self.since == "answer" else columns - view.blocks.begin[:, None]

    def _select(self, ready: Tensor, confidence: Tensor, moved: Tensor) -> Tensor:
        if self.strategy == "all":
            return ready
        return argmax_mask(confidence if self.strategy == "max_conf" else -moved, ready)


def in_block(scores: Scores, place: Tensor, width: int) -> Tensor:
    """The raw logits [B, W, V] by ``place`` [B, L] of a column in its block, zero where nothing was scored."""
    all_logits, length = scores.of(AllLogits()), place.shape[1]
    logits, columns = all_logits.values, all_logits.columns
    at = place.gather(1, columns.clamp(max=length - 1))
    elsewhere = (columns == length) | (at < 0) | (at >= width)
    out = logits.new_zeros(len(logits), width + 1, logits.shape[-1])
    return out.scatter(1, at.masked_fill(elsewhere, width).unsqueeze(-1).expand_as(logits), logits)[:, :-1]


def divergence(now: Tensor, before: Tensor) -> Tensor:
    """KL(softmax(now) || softmax(before)) [B, W] in nats, float64, of logits [B, W, V]. Tokens at -inf in both add
    nothing.

    A distribution that has settled moves by 1e-8 nats and less: terms of 1e-7 that cancel, which float32 rounds to
    noise. The published code adds 1e-12 inside both logarithms, which matters only for tokens below 1e-10.
    """
    return in_float64(_divergence, now, before)


def _divergence(now: Tensor, before: Tensor) -> Tensor:
    p, q = now.log_softmax(-1), before.log_softmax(-1)
    return (p.exp() * (p - q)).nan_to_num(0.0).sum(-1)
