"""Compute a window of masks, attend to a wider one, leave out the far field (Window-Diffusion, arXiv 2601.20332)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dllm.cache.base import Cache, Session
from dllm.cache.buffer import Buffered
from dllm.cache.rows import predictors
from dllm.canvas import Canvas
from dllm.common.rowwise import Owner
from dllm.contract import BlockState, ForwardPlan, Need, Rule
from dllm.errors import UserError, not_one_of
from dllm.models.config import ModelConfig
from dllm.setting import Setting
from dllm.shapes import Bounded

WINDOW_OPTIONS = {"queries": ("masks", "range"), "refresh_scope": ("window", "all"),
           "refresh_candidates": ("active", "all", "first")}  # fmt: skip


class Window(Cache):
    """A phase is ``refresh_interval`` forwards. The first one computes everything decided and the first
    ``window_tokens`` masks; the whole phase attends to these. The other forwards compute the first ``active_tokens``
    masks, which may be committed, and what the phase has committed.

    queries: ``masks`` is that (LLaDA's code). ``range`` (Dream's) computes the columns from the phase's first mask to
    the end of the active ones, and attends to one mask fewer. refresh_scope ``all``: a phase's first forward sees the
    far field too. refresh_candidates: what that forward may commit: the active masks, all, or exactly the first one.
    recent_includes_refresh: the phase computes those commits in all its forwards, not in one. reference_eos: every
    forward after a committed end of text is the first of a phase (with eos=cut_canvas: the adaptive length). As
    published: masks, all, all, false for LLaDA; range, window, first and reference_eos for Dream.
    """

    committed = False
    static = follows_commits = True

    def __init__(
        self, active_tokens: int = 16, window_tokens: int = 64, refresh_interval: int = 32, queries: str = "masks",
        refresh_scope: str = "window", refresh_candidates: str = "active", recent_includes_refresh: bool = True,
        reference_eos: bool = False,
    ) -> None:  # fmt: skip
        chosen = {"queries": queries, "refresh_scope": refresh_scope, "refresh_candidates": refresh_candidates}
        for name, value in chosen.items():
            if value not in WINDOW_OPTIONS[name]:
                known = WINDOW_OPTIONS[name]
                raise not_one_of(f"cache.{name}", value, known)
        for name, count in (("active_tokens", active_tokens), ("refresh_interval", refresh_interval)):
            if count < 1:
                raise UserError(f"cache.{name}={count} must be at least 1.")
        self.active_tokens, self.window_tokens, self.refresh_interval = active_tokens, window_tokens, refresh_interval
        self.range, self.everywhere, self.candidates = queries == "range", refresh_scope == "all", refresh_candidates
        self.recent_includes_refresh, self.reference_eos = recent_includes_refresh, reference_eos

    def check(self, setting: Setting, sampler: Rule, needs: Sequence[Need]) -> None:
        super().check(setting, sampler, needs)
        reach = self.active_tokens + self.refresh_interval
        if self.window_tokens < min(reach, setting.gen_length or reach):
            raise UserError(
                f"cache.window_tokens={self.window_tokens} is less than active_tokens={self.active_tokens} + "
                f"refresh_interval={self.refresh_interval}: within a phase the active masks would move out of what it "
                f"attends to. Use at least {reach}, or a smaller refresh_interval."
            )

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return Phases(canvas, config, self)


class Phases(Buffered):
    """phase [B, L]: what this phase attends to. recent [B, L]: what it has committed and goes on computing. anchor [B]:
    its first mask. refreshed [B]: whether the last forward was a phase's first. last [B, L]: what that forward
    computed. bounds: what the host knew of each row when it last synchronised (bounded shapes)."""

    state = (*Buffered.state, "phase", "recent", "anchor", "refreshed", "last")

    def __init__(self, canvas: Canvas, config: ModelConfig, policy: Window) -> None:
        super().__init__(canvas, config)
        self.policy = policy
        self.phase = self.recent = self.last = torch.zeros_like(canvas.masked)
        self.anchor, self.refreshed = canvas.start, torch.zeros_like(canvas.cut)
        self.bounds: list[Bound] = []

    def queries(self, canvas: Canvas, blocks: BlockState, announced: Tensor) -> ForwardPlan:
        policy, masks = self.policy, canvas.undecided
        rank = masks.cumsum(1)
        active = masks & (rank <= policy.active_tokens)
        refresh = blocks.turn % policy.refresh_interval == 0
        if policy.reference_eos:
            refresh = refresh | canvas.cut
        self._fix_phase(canvas, masks & (rank <= policy.window_tokens - policy.range), refresh)
        first = masks & (rank == 1)
        self.anchor = torch.where(refresh, (first * canvas.columns).sum(1), self.anchor)
        live = self._live(canvas, active)
        committable, forced = active, canvas.nothing
        if policy.candidates == "first":
            forced = first & refresh[:, None]
        elif policy.candidates == "all":
            committable = active | (masks & refresh[:, None])
        columns = torch.where(refresh[:, None], self.phase, live)
        self.refreshed, self.last = refresh, columns
        bounds = blocks.shapes.bounds(partial(self._bounds, blocks.turn, columns))
        return ForwardPlan.of(
            canvas, blocks.shapes, columns, committable=committable, forced=forced, bounds=bounds)

    def _bounds(self, turns: Tensor, columns: Tensor, known: Bounded) -> tuple[int, ...]:
        """The most columns of each row: the whole canvas for a phase's first forward, else the active masks, what
        predicts them, and what the phase has committed, which the host counts whenever it synchronises. Rounded up to
        multiples of 16, so that shapes repeat."""
        if self.policy.range or self.policy.reference_eos:
            return (self.length,) * len(columns)
        if known.looked:
            rows = torch.stack([turns, columns.sum(1)], 1).tolist()
            self.bounds = [Bound(*row) for row in rows]
        else:
            self.bounds = [bound.later(self.policy, self.length) for bound in self.bounds]
        interval = self.policy.refresh_interval
        return tuple(self.length if bound.turn % interval == 0 else min(self.length, -(-bound.columns // 16) * 16)
                     for bound in self.bounds)  # fmt: skip

    def _fix_phase(self, canvas: Canvas, near: Tensor, refresh: Tensor) -> None:
        """Fix what the phase attends to. If its first forward sees the far field, that happens after its commits."""
        new = self.masks ^ canvas.masked  # committed, or undone
        before = self.refreshed[:, None]
        stays = new if self.policy.recent_includes_refresh else new & ~before
        self.fresh = new
        self.recent = torch.where(refresh[:, None], False, self.recent)
        self.next_recent = torch.where(refresh[:, None], False, self.recent | stays)
        near = (near | ~canvas.masked) & canvas.valid
        if self.policy.everywhere:
            self.phase = torch.where(before, near, self.phase)
            self.phase = torch.where(refresh[:, None], canvas.valid, self.phase)
        else:
            self.phase = torch.where(refresh[:, None], near, self.phase)

    def _live(self, canvas: Canvas, active: Tensor) -> Tensor:
        """Columns [B, L] of a forward that is not a phase's first."""
        shift = self.config.prediction_shift
        if not self.policy.range:
            live = active | self.recent | self.fresh
            self.recent = self.next_recent
            return live | predictors(active, canvas, self.config) if shift else live
        # The range ends before the mask that follows the active ones, or at the end of the row if there is none.
        beyond = canvas.undecided & (canvas.undecided.cumsum(1) == self.policy.active_tokens + 1)
        end = torch.where(beyond.any(1), (beyond * canvas.columns).sum(1), canvas.end)
        begin = self.anchor - (shift if self.policy.candidates != "first" else 0)
        return (canvas.columns >= begin[:, None]) & (canvas.columns < end[:, None])

    def keys(self, plan: ForwardPlan, candidates: Canvas, owner: Owner) -> Tensor:
        return (self.phase | self.last) & candidates.valid


@dataclass(frozen=True)
class Bound:
    """A row's turn, and the most columns that it computes in it, if it is no phase's first."""

    turn: int
    columns: int

    def later(self, policy: Window, length: int) -> Bound:
        """The bound one turn later. A turn commits active masks and undoes fewer; what predicts the active ones may be
        new too. A phase's first turn may commit more, but then the phase has committed nothing before."""
        active = policy.active_tokens
        if self.turn % policy.refresh_interval == 0:
            begun = length if policy.candidates == "all" else max(2 * active, policy.window_tokens)
            return Bound(self.turn + 1, 2 * active + begun)
        return Bound(self.turn + 1, self.columns + 3 * active)
