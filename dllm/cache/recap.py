"""Run a few local forwards between full ones (ReCAP, arXiv 2505.19089, carried over from masked image models)."""

from __future__ import annotations

import torch

from dllm.cache.buffer import Buffered, CacheView
from dllm.cache.rows import predictors
from dllm.canvas import Canvas
from dllm.contract import ForwardPlan, State
from dllm.errors import in_choices, in_range


class Recap(Buffered):
    """After a full forward come ``local_steps`` local ones, which compute the masks and what was committed since.

    targets: which masks, those of the open blocks (``block``) or all (``all_masked``). start_fraction: all forwards are
    full until this share of the answer is decided. The paper has one local step; the other two options are ours.
    """

    def __init__(self, local_steps: int = 1, start_fraction: float = 0.0, targets: str = "block") -> None:
        in_range("cache.local_steps", local_steps, 0, advice="0 is cache=none.")
        in_choices("cache.targets", targets, ("block", "all_masked"))
        in_range("cache.start_fraction", start_fraction, 0.0, 1.0)
        self.local_steps, self.start_fraction, self.targets = local_steps, start_fraction, targets
        if targets == "all_masked":
            self.regions = frozenset({"block", "suffix", "ahead", "answer"})

    def state(self, canvas: Canvas) -> State:
        """since [B, L]: committed since the last full forward. left [B]: local forwards until the next one."""
        return {"since": canvas.nothing, "left": torch.zeros_like(canvas.start)}

    def plan(self, view: CacheView) -> ForwardPlan:
        canvas, left = view.canvas, view.state["left"]
        to_fill = (~canvas.given & canvas.valid).sum(1)
        decided = to_fill - canvas.masked.sum(1)
        full = (left == 0) | (decided < self.start_fraction * to_fill)
        since = (view.state["since"] | (view.masks ^ canvas.masked)) & ~full[:, None]
        masks = canvas.undecided & view.blocks.in_open if self.targets == "block" else canvas.undecided
        columns = full[:, None] | since | masks | predictors(masks, canvas, view.config)
        return view.plan(columns, state={"since": since, "left": torch.where(full, self.local_steps, left - 1)})
