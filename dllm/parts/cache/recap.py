"""Run a few local forwards between full ones (ReCAP, arXiv 2505.19089, carried over from masked image models)."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.errors import Set, in_choices, in_range
from dllm.contract import ForwardPlan, State
from dllm.contract.canvas import Canvas
from dllm.contract.clash import Mismatch
from dllm.parts.cache.buffer import Buffered, CacheView
from dllm.parts.cache.columns import predictors


class Recap(Buffered):
    """After a full forward come ``local_steps`` local ones, which compute the masks and what was committed since.

    targets: which masks, those of the open blocks (``block``), all (``all_masked``), or as published those that the
    sampler has announced for this turn (``announced``): then a forward is local wherever something is announced.
    start_fraction: all forwards are full until this share of the answer is decided. The paper has one local step, and
    starts after some steps (``sampler=groups``); the first two targets and the fraction are ours.
    """

    traits = Buffered.traits.but(bounded_shapes=True)
    clashes = (
        *Buffered.clashes,
        Mismatch(
            lambda c: c.part.targets == "announced" and not c.does.plans_ahead,
            "{cache.targets} computes what the sampler announces, and {sampler} announces nothing.",
            [Set("sampler", "groups"), Set("sampler", "order"), Set("cache.targets", "block")],
        ),
    )

    def __init__(self, local_steps: int = 1, start_fraction: float = 0.0, targets: str = "block") -> None:
        in_range("cache.local_steps", local_steps, 0, advice="0 is cache=none.")
        in_choices("cache.targets", targets, ("block", "all_masked", "announced"))
        in_range("cache.start_fraction", start_fraction, 0.0, 1.0)
        self.local_steps, self.start_fraction, self.targets = local_steps, start_fraction, targets
        if targets == "all_masked":
            self.traits = self.traits.but(regions=frozenset({"block", "suffix", "ahead", "answer"}))

    def state(self, canvas: Canvas) -> State:
        """since [B, L]: committed since the last full forward. left [B]: local forwards until the next one."""
        return {"since": canvas.no_positions, "left": torch.zeros_like(canvas.start)}

    def plan(self, view: CacheView) -> ForwardPlan:
        canvas, forwards_left = view.canvas, view.state["left"]
        to_fill = (~canvas.given & canvas.valid).sum(1)
        decisions = to_fill - canvas.masked.sum(1)
        local = (view.next_positions > 0).any(1) if self.targets == "announced" else forwards_left > 0
        full = ~local | (decisions < self.start_fraction * to_fill)
        since = (view.state["since"] | (view.masks ^ canvas.masked)) & ~full[:, None]
        masks = self._masks(view)
        columns = full[:, None] | since | masks | predictors(masks, canvas, view.config)
        left = torch.where(full, self.local_steps, forwards_left - 1)
        return view.plan(columns, state={"since": since, "left": left})

    def _masks(self, view: CacheView) -> Tensor:
        """The masks [B, L] that a local forward computes."""
        masks = view.canvas.undecided
        if self.targets == "announced":
            return masks & (view.next_positions > 0)
        return masks & view.blocks.in_open if self.targets == "block" else masks
