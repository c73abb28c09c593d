"""Compute a window of masks, attend to a wider one, leave out the far field (Window-Diffusion, arXiv 2601.20332)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dllm.common.errors import Set, in_choices, in_range
from dllm.contract import ForwardPlan, State
from dllm.contract.canvas import Canvas
from dllm.contract.clash import Clash
from dllm.contract.shapes import HostView
from dllm.models.config import ModelConfig
from dllm.parts.cache.buffer import Buffered, CacheView
from dllm.parts.cache.columns import predictors


class Window(Buffered):
    """A phase is ``refresh_interval`` forwards. The first one computes everything decided and the first
    ``window_tokens`` masks; the whole phase attends to these. The other forwards compute the first ``active_tokens``
    masks, which may be committed, and what the phase has committed.

    queries: ``masks`` is that (LLaDA's code). ``range`` (Dream's) computes the columns from the phase's first mask to
    the end of the active ones, and attends to one mask fewer. refresh_scope ``all``: a phase's first forward sees the
    far field too. refresh_candidates: what that forward may commit: the active masks, all, or exactly the first one.
    recent_includes_refresh: the phase computes those commits in all its forwards, not in one. eos_as_published: every
    forward after a committed end of text is the first of a phase (with eos=truncate_at_eos: the adaptive length). As
    published: masks, all, all, false for LLaDA; range, window, first and eos_as_published for Dream.
    """

    traits = Buffered.traits.but(bounded_shapes=True, bounds_late=True, bounds_by_masks=True, full_on_open=False)
    clashes = (
        *Buffered.clashes,
        Clash(
            lambda c: (
                c.part.window_tokens
                < min(reach := c.part.active_tokens + c.part.refresh_interval, c.gen_length or reach)
            ),
            "{cache.window_tokens} is less than {cache.active_tokens} + {cache.refresh_interval}: within a phase the "
            "active masks would move out of what it attends to.",
            [lambda c: Set("cache.window_tokens", c.part.active_tokens + c.part.refresh_interval)],
            "Or take a smaller {cache.refresh_interval:name}.",
        ),
    )

    def __init__(
        self,
        active_tokens: int = 16,
        window_tokens: int = 64,
        refresh_interval: int = 32,
        queries: str = "masks",
        refresh_scope: str = "window",
        refresh_candidates: str = "active",
        recent_includes_refresh: bool = True,
        eos_as_published: bool = False,
    ) -> None:
        in_choices("cache.queries", queries, ("masks", "range"))
        in_choices("cache.refresh_scope", refresh_scope, ("window", "all"))
        in_choices("cache.refresh_candidates", refresh_candidates, ("active", "all", "first"))
        in_range("cache.active_tokens", active_tokens, 1)
        in_range("cache.refresh_interval", refresh_interval, 1)
        self.active_tokens, self.window_tokens, self.refresh_interval = active_tokens, window_tokens, refresh_interval
        self.range, self.everywhere, self.candidates = queries == "range", refresh_scope == "all", refresh_candidates
        self.recent_includes_refresh, self.eos_as_published = recent_includes_refresh, eos_as_published
        if self.range or eos_as_published:  # its end, and whether a phase begins, the turn before alone tells
            self.traits = self.traits.but(bounds_late=False, bounds_by_masks=False, full_on_open=True)

    def state(self, canvas: Canvas) -> State:
        """phase [B, L]: what this phase attends to. recent [B, L]: what it has committed and goes on computing. anchor
        [B]: its first mask. refreshed [B]: whether the last forward was a phase's first."""
        nothing, refreshed = canvas.no_positions, torch.zeros_like(canvas.shortened)
        return {"phase": nothing, "recent": nothing, "anchor": canvas.start, "refreshed": refreshed}

    def plan(self, view: CacheView) -> ForwardPlan:
        canvas, state, masks = view.canvas, view.state, view.canvas.undecided
        rank = masks.cumsum(1)
        active, first = masks & (rank <= self.active_tokens), masks & (rank == 1)
        refresh = view.blocks.turn % self.refresh_interval == 0
        if self.eos_as_published:
            refresh = refresh | canvas.shortened
        anchor = torch.where(refresh, (first * canvas.columns).sum(1), state["anchor"])
        begins, before = refresh[:, None], state["refreshed"][:, None]
        new = view.masks ^ canvas.masked  # committed, or undone
        recent = state["recent"] & ~begins
        near = (masks & (rank <= self.window_tokens - self.range) | ~canvas.masked) & canvas.valid
        if self.everywhere:  # a first forward sees the far field too; the phase is fixed after its commits
            phase = torch.where(begins, canvas.valid, torch.where(before, near, state["phase"]))
        else:
            phase = torch.where(begins, near, state["phase"])
        if self.range:
            live = self._range(view, anchor)
        else:
            live = active | recent | new
            if view.config.prediction_shift:
                live = live | predictors(active, canvas, view.config)
            recent = (recent | (new if self.recent_includes_refresh else new & ~before)) & ~begins
        columns, committable, forced = torch.where(begins, phase, live), active, None
        if self.candidates == "first":
            forced = first & begins
        elif self.candidates == "all":
            committable = active | (masks & begins)
        return view.plan(
            columns,
            committable=committable,
            forced=forced,
            keys=(phase | columns) & canvas.valid,
            state={"phase": phase, "recent": recent, "anchor": anchor, "refreshed": refresh},
        )

    def counts(self, view: CacheView) -> list[Tensor]:
        """What a phase goes on computing, and what is left to decide."""
        return [(view.state["recent"] | view.masks ^ view.canvas.masked).sum(1), view.canvas.undecided.sum(1)]

    def max_queries(
        self, host_views: Sequence[HostView], length: int, width: int, config: ModelConfig
    ) -> tuple[int, ...]:
        bounds, active = list[int](), self.active_tokens * (2 if config.prediction_shift else 1)
        for row in host_views:
            recent, left = row.counts
            for turn in range(row.forwards, row.turn):  # what turns that the host has not seen may have committed
                everywhere = turn % self.refresh_interval == 0 and self.candidates == "all"
                recent += left if everywhere else min(left, self.active_tokens)
            refreshes = row.turn % self.refresh_interval == 0
            bounds.append(length if refreshes else min(length, recent + active))
        return tuple(bounds)

    def _range(self, view: CacheView, anchor: Tensor) -> Tensor:
        """Columns [B, L] from the phase's first mask to before the mask that follows the active ones, or to the end of
        else the row."""
        canvas = view.canvas
        beyond = canvas.undecided & (canvas.undecided.cumsum(1) == self.active_tokens + 1)
        end = torch.where(beyond.any(1), (beyond * canvas.columns).sum(1), canvas.end)
        begin = anchor - (view.config.prediction_shift if self.candidates != "first" else 0)
        return (canvas.columns >= begin[:, None]) & (canvas.columns < end[:, None])
