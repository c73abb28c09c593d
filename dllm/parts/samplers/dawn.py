"""Commit together what does not attend to each other (DAWN, arXiv 2602.06953)."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.errors import in_range
from dllm.common.ranking import argmax_mask, rank
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import PerRequest
from dllm.contract.readouts import AttentionMap, AttentionWeights
from dllm.contract.traits import SamplerTraits
from dllm.parts.samplers.base import TOO_MANY_LAYERS, Sampler


class Dawn(Sampler):
    """A position depends on another one if it attends to it with a weight of ``edge`` or more. Commit

    - what is sure: confidence at least ``threshold``;
    - what is induced: it depends on an anchor, a committed position left of the block's end at which the model is sure,
      and its confidence is at least ``induced_threshold``;
    - of the rest with ``low_threshold`` or more, except what depends on a sure and on an induced position, a set in
      which none depends on another: the most confident first.

    If that is nothing, commit the most confident. Columns that get more than the share ``sink`` of all attention count
    for nothing. Anchors are those that the forward computes: with block caches, few of the prompt's.

    layers: attention is the mean over that many of the last layers (None: a quarter of them; published: 4). unshifted:
    read it in the row of the position, not in the row that predicts it (the published code for Dream).
    """

    # how many rounds the last set takes
    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=False, syncs=True)
    per_request = ("threshold", "induced_threshold", "low_threshold", "edge", "sink")
    clashes = (TOO_MANY_LAYERS,)

    def __init__(
        self,
        threshold: PerRequest = 0.9,
        induced_threshold: PerRequest = 0.7,
        low_threshold: PerRequest = 0.75,
        edge: PerRequest = 0.07,
        sink: PerRequest = 0.01,
        layers: int | None = None,
        unshifted: bool = False,
    ) -> None:
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        in_range("sampler.induced_threshold", induced_threshold, 0.0, advice="Above 1 nothing is induced.")
        in_range("sampler.low_threshold", low_threshold, 0.0, advice="Above 1 there is no third set.")
        in_range("sampler.edge", edge, 0.0, 1.0, "It is a share of a position's attention.")
        in_range("sampler.sink", sink, 0.0, 1.0, "It is a share of the attention; 1 means no sinks.")
        in_range("sampler.layers", layers, 1, advice="They count from the last one; {null} is the last quarter.")
        self.threshold, self.induced_threshold, self.low_threshold = threshold, induced_threshold, low_threshold
        self.edge, self.sink, self.layers = edge, sink, layers
        self.attention = AttentionMap(layers, received=True, unshifted=unshifted)

    def needs(self) -> tuple[Need, ...]:
        return (Need(committed=True, reads=(self.attention,)), Need("before", committed=True))

    def step(self, view: View, state: State) -> Step:
        attention, confidence = view.scores.of(self.attention), view.scores.confidence
        edge = self.edges(attention, view.canvas.columns, state)
        sure = view.open & (confidence >= state["threshold"][:, None])
        open_, confident = attention.at_masks(view.open), attention.at_masks(confidence)
        induced = open_ & (edge & self.anchors(view, state)[:, None]).any(2)
        induced &= confident >= state["induced_threshold"][:, None]
        induces = attention.scatter_to(induced, view.canvas.no_positions)
        excluded = (edge & sure[:, None]).any(2) & (edge & induces[:, None]).any(2)
        candidates = open_ & ~attention.at_masks(sure) & ~induced & ~excluded
        candidates &= confident >= state["low_threshold"][:, None]
        free = independent(confident, candidates, attention.between_masks(edge))
        accepted = sure | attention.scatter_to(induced | free, view.canvas.no_positions)
        forced = argmax_mask(confidence, view.open) & ~accepted.any(1, keepdim=True)
        return view.step(accepted | forced, accepted=accepted)

    def edges(self, attention: AttentionWeights, columns: Tensor, state: State) -> Tensor:
        """Which open masks depend on which columns [B, m, L]. What a column gets from itself makes it a sink, too, but
        no edge."""
        assert attention.received is not None
        sinks, itself = attention.received > state["sink"][:, None], attention.columns[..., None] == columns
        return attention.weights.masked_fill(sinks[:, None] | itself, 0) >= state["edge"][:, None, None]

    def anchors(self, view: View, state: State) -> Tensor:
        """Committed positions left of the block's end at which the model's own top probability is high [B, L]."""
        canvas, scores = view.canvas, view.scores
        before = scores.scored & ~canvas.masked & (canvas.columns < view.blocks.end[:, None])
        return before & (scores.confidence >= state["threshold"][:, None])


def independent(score: Tensor, among: Tensor, edge: Tensor) -> Tensor:
    """Positions ``among`` [B, m] none of them with an edge [B, m, m] to another, in either direction: take the highest
    ``score`` (of equals the first), drop its neighbours, repeat. All that are higher than their neighbours are taken in
    one round, which gives the same set in fewer."""
    _, place = rank(score, among)
    conflict, first, remaining = edge | edge.transpose(1, 2), torch.zeros_like(among), among
    while bool(remaining.any()):
        rivals = conflict & remaining[:, None] & (place[:, None] < place[:, :, None])
        best = remaining & ~rivals.any(2)
        first, remaining = first | best, remaining & ~best & ~(conflict & best[:, None]).any(2)
    return first
