"""Run a few local forwards between full ones (ReCAP, arXiv 2505.19089, carried over from masked image models)."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.cache.base import Cache, Session
from dllm.cache.buffer import Buffered
from dllm.cache.rows import predictors
from dllm.canvas import Canvas
from dllm.contract import BlockState, ForwardPlan
from dllm.errors import UserError, in_range, not_one_of
from dllm.models.config import ModelConfig

TARGETS = ("block", "all_masked")


class Recap(Cache):
    """After a full forward come ``local_steps`` local ones, which compute the masks and what was committed since.

    targets: which masks, those of the open blocks (``block``) or all (``all_masked``). start_fraction: all forwards are
    full until this share of the answer is decided. The paper has one local step; the other two options are ours.
    """

    committed = False

    def __init__(self, local_steps: int = 1, start_fraction: float = 0.0, targets: str = "block") -> None:
        if local_steps < 0:
            raise UserError(f"cache.local_steps={local_steps} must be at least 0 (0 is cache=none).")
        if targets not in TARGETS:
            raise not_one_of("cache.targets", targets, TARGETS)
        in_range("cache.start_fraction", start_fraction, 0.0, 1.0)
        self.local_steps, self.start_fraction, self.targets = local_steps, start_fraction, targets
        if targets == "all_masked":
            self.regions = frozenset({"block", "suffix", "ahead", "answer"})

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return Recapping(canvas, config, self)


class Recapping(Buffered):
    """since [B, L]: committed since the last full forward; left [B]: local forwards until the next one."""

    state = (*Buffered.state, "since", "left")

    def __init__(self, canvas: Canvas, config: ModelConfig, policy: Recap) -> None:
        super().__init__(canvas, config)
        self.policy, self.left = policy, torch.zeros_like(canvas.start)
        self.since = torch.zeros_like(canvas.masked)

    def queries(self, canvas: Canvas, blocks: BlockState, announced: Tensor) -> ForwardPlan:
        to_fill = (~canvas.given & canvas.valid).sum(1)
        decided = to_fill - canvas.masked.sum(1)
        full = (self.left == 0) | (decided < self.policy.start_fraction * to_fill)
        self.left = torch.where(full, self.policy.local_steps, self.left - 1)
        self.since = (self.since | (self.masks ^ canvas.masked)) & ~full[:, None]
        inside = blocks.in_open if self.policy.targets == "block" else True
        masks = canvas.undecided & inside
        columns = full[:, None] | self.since | masks | predictors(masks, canvas, self.config)
        return ForwardPlan.of(canvas, blocks.shapes, columns)
