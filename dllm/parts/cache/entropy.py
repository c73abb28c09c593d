"""Recompute everything after commits of high entropy (our reading of EntropyCache, arXiv 2603.18489)."""

from __future__ import annotations

import torch

from dllm.common.errors import in_range
from dllm.common.ranking import top_k_mask
from dllm.contract import ForwardPlan, Need, Scores, State
from dllm.contract.canvas import Canvas
from dllm.contract.readouts import Statistic
from dllm.parts.cache.buffer import Buffered, CacheView
from dllm.parts.cache.columns import predictors


class Entropy(Buffered):
    """If the entropy (nats) of any token that the last turn committed was above ``threshold``, the next forward
    computes everything. Else it computes the masks of the open blocks, what that turn committed, and at least the
    ``recent`` last commits of the row (in a turn, those further right are later). A turn that commits nothing is
    followed by a full forward, and the opening of a block by none.
    """

    traits = Buffered.traits.but(shadows=False, bounded_shapes=True)

    def __init__(self, threshold: float = 1.0, recent: int = 16) -> None:
        in_range("cache.threshold", threshold, -1.0, advice="It is in nats; below 0 every forward is full.")
        in_range("cache.recent", recent, 0, advice="It counts positions.")
        self.threshold, self.recent = threshold, recent

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=Statistic.of("entropy")),)

    def state(self, canvas: Canvas) -> State:
        """entropy [B, L]: what the last forward that scored a mask said of it. since [B, L]: the turn that committed
        each position."""
        zero = torch.zeros_like(canvas.tokens)
        return {"entropy": zero.double(), "since": zero}

    def after_scores(self, state: State, scores: Scores) -> State:
        fresh = scores.scored & state["masks"]
        return {"entropy": torch.where(fresh, scores.statistic("entropy").double(), state["entropy"])}

    def plan(self, view: CacheView) -> ForwardPlan:
        canvas, blocks = view.canvas, view.blocks
        new = view.masks & ~canvas.masked & canvas.valid
        since = torch.where(new, blocks.turn[:, None], view.state["since"])
        highest = torch.where(new, view.state["entropy"], -torch.inf).amax(1)
        full = (blocks.turn == 0) | ~new.any(1) | (highest > self.threshold)
        order = since * len(canvas.columns) + canvas.columns
        last = top_k_mask(order.double(), canvas.committed, torch.full_like(canvas.start, self.recent))
        masks = canvas.undecided & blocks.in_open
        columns = full[:, None] | masks | predictors(masks, canvas, view.config) | new | last
        return view.plan(columns, state={"since": since})
