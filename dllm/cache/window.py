"""Window-Diffusion: compute a window of masks, attend to a wider one, leave out the far field (arXiv 2601.20332)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dllm.blocks.base import Span
from dllm.cache.base import Cache, Plan, Session
from dllm.cache.buffer import Buffered
from dllm.cache.rows import predictors
from dllm.canvas import Canvas
from dllm.errors import UserError, nearest
from dllm.models.config import ModelConfig
from dllm.samplers.base import Sampler
from dllm.scores import Need
from dllm.setting import Setting

CHOICES = {"queries": ("masks", "range"), "refresh_scope": ("window", "all"),
           "refresh_candidates": ("active", "all", "first")}  # fmt: skip


class Window(Cache):
    """A phase is ``refresh_interval`` forwards. Its first one computes and fixes what the phase attends to: everything
    decided and the first ``window_tokens`` masks. The others compute the first ``active_tokens`` masks, which may be
    committed, and what the phase has committed.

    queries: ``masks`` as said (LLaDA's code), or the ``range`` of columns from the phase's first mask to the end of the
    active ones, one mask fewer attended (Dream's). refresh_scope ``all``: a phase's first forward sees the far field
    too. refresh_candidates: what it may commit: the active masks, all, or exactly the first one.
    recent_includes_refresh: what it commits stays computed for the whole phase, not for one forward. As published:
    masks, all, all, false for LLaDA; range, window, first for Dream, where ``reference_eos`` makes every forward behind
    a committed end of text the first of a phase (with eos=cut_canvas: the adaptive length).
    """

    committed = False
    static = True

    def __init__(
        self, active_tokens: int = 16, window_tokens: int = 64, refresh_interval: int = 32, queries: str = "masks",
        refresh_scope: str = "window", refresh_candidates: str = "active", recent_includes_refresh: bool = True,
        reference_eos: bool = False,
    ) -> None:  # fmt: skip
        chosen = {"queries": queries, "refresh_scope": refresh_scope, "refresh_candidates": refresh_candidates}
        for name, value in chosen.items():
            if value not in CHOICES[name]:
                known = CHOICES[name]
                raise UserError(f"cache.{name}={value!r} must be one of {', '.join(known)}.{nearest(value, known)}")
        for name, count in (("active_tokens", active_tokens), ("refresh_interval", refresh_interval)):
            if count < 1:
                raise UserError(f"cache.{name}={count} must be at least 1.")
        self.active_tokens, self.window_tokens, self.refresh_interval = active_tokens, window_tokens, refresh_interval
        self.range, self.everywhere, self.candidates = queries == "range", refresh_scope == "all", refresh_candidates
        self.recent_includes_refresh, self.reference_eos = recent_includes_refresh, reference_eos

    def check(self, setting: Setting, sampler: Sampler, needs: Sequence[Need]) -> None:
        super().check(setting, sampler, needs)
        reach = self.active_tokens + self.refresh_interval
        if self.window_tokens < min(reach, setting.gen_length or reach):
            raise UserError(
                f"cache.window_tokens={self.window_tokens} is less than active_tokens={self.active_tokens} + "
                f"refresh_interval={self.refresh_interval}: within a phase the active masks would slide out of what is "
                f"attended to. Use at least {reach}, or a smaller refresh_interval."
            )

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return Phases(canvas, config, self)


class Phases(Buffered):
    """phase [B, L]: what this phase attends to; recent [B, L]: what it has committed and goes on computing; anchor [B]:
    its first mask; refreshed [B]: whether the last forward was a phase's first."""

    def __init__(self, canvas: Canvas, config: ModelConfig, policy: Window) -> None:
        super().__init__(canvas, config)
        self.policy = policy
        self.phase = self.recent = torch.zeros_like(canvas.masked)
        self.anchor, self.refreshed, self.turns = canvas.start, torch.zeros_like(canvas.cut), 0

    def queries(self, canvas: Canvas, span: Span, upcoming: Tensor | None) -> Plan:
        policy, masks = self.policy, canvas.undecided
        rank = masks.cumsum(1)
        active = masks & (rank <= policy.active_tokens)
        refresh = span.turn % policy.refresh_interval == 0
        if policy.reference_eos:
            refresh = refresh | canvas.cut
        self._fix_phase(canvas, masks & (rank <= policy.window_tokens - policy.range), refresh)
        first = masks & (rank == 1)
        self.anchor = torch.where(refresh, (first * canvas.columns).sum(1), self.anchor)
        live = self._live(canvas, active)
        ready, only = active, None
        if policy.candidates == "first":
            only = first & refresh[:, None]
        elif policy.candidates == "all":
            ready = active | (masks & refresh[:, None])
        columns = torch.where(refresh[:, None], self.phase, live)
        self.refreshed, self.last = refresh, columns
        self.turns += 1
        return Plan(columns, ready=ready, only=only, width=None if span.sizes is None else self._widest())

    def _widest(self) -> int:
        """The most columns of this forward: the whole canvas, or the active masks, what predicts them, and what the
        phase has committed. Rows begin together, so the host can count their turns."""
        policy = self.policy
        if policy.range or policy.reference_eos or (self.turns - 1) % policy.refresh_interval == 0:
            return self.length
        return min(self.length, 2 * policy.active_tokens + max(policy.window_tokens, policy.active_tokens))

    def _fix_phase(self, canvas: Canvas, near: Tensor, refresh: Tensor) -> None:
        """With the far field in a phase's first forward, what the phase attends to is settled after its commits."""
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
        # To just before the mask that follows the active ones; the end of the row if there are none.
        beyond = canvas.undecided & (canvas.undecided.cumsum(1) == self.policy.active_tokens + 1)
        end = torch.where(beyond.any(1), (beyond * canvas.columns).sum(1), canvas.end)
        begin = self.anchor - (shift if self.policy.candidates != "first" else 0)
        return (canvas.columns >= begin[:, None]) & (canvas.columns < end[:, None])

    def keep_attended(self, plan: Plan, candidates: Canvas, owner: Tensor | None) -> Tensor:
        return (self.phase | self.last) & candidates.valid

    def select(self, rows: Tensor) -> Session:
        self.phase, self.recent, self.anchor = self.phase[rows], self.recent[rows], self.anchor[rows]
        self.refreshed = self.refreshed[rows]
        return super().select(rows)
