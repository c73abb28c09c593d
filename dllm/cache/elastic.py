"""Elastic-Cache: refresh when attention drifts, from the layer on in which it does (arXiv 2510.14973)."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.blocks.base import Span
from dllm.cache.base import Cache, Plan, Session
from dllm.cache.buffer import Buffered
from dllm.cache.drift import SIMILARITIES, Past, among, attended, attention_weights, mean_of, picked, strongest
from dllm.cache.rows import place_of, predictors, rows_of
from dllm.canvas import Canvas, pack
from dllm.cost import Work
from dllm.errors import UserError, in_range, nearest
from dllm.kernels.drift import received, similarity
from dllm.models.config import ModelConfig
from dllm.models.transformer import Project, Projected

TRIGGERS = ("same_step", "next_step")


class Elastic(Cache):
    """A forward computes the leftmost ``window_length`` masks (only these may be committed), what was just committed,
    and the decided positions that the window attends to most. A layer in which the attention of the latter has changed
    (similarity to their last attention below ``gamma``) makes all layers behind it recompute the whole canvas.

    similarity: cosine over ``heads`` for every tracked position and key, or over ``keys`` for every head, averaged.
    trigger: ``same_step`` acts within the forward (published; a decision per layer), ``next_step`` in the next forward
    (one decision per forward). block_caching False: every mask is computed. first_layer: recompute from this layer on
    at every forward, whatever drifts (0: no cache at all).
    """

    committed = shadows = False

    def __init__(
        self, window_length: int = 16, gamma: float = 0.9, track_num: int = 1, similarity: str = "heads",
        trigger: str = "same_step", block_caching: bool = True, first_layer: int | None = None,
    ) -> None:  # fmt: skip
        if first_layer is None:
            in_range("cache.gamma", gamma, 0.0, 1.0, "0 never refreshes. cache.first_layer=0 forces a refresh always.")
        for name, value, known in (("similarity", similarity, [*SIMILARITIES]), ("trigger", trigger, [*TRIGGERS])):
            if value not in known:
                raise UserError(f"cache.{name}={value!r} must be one of {', '.join(known)}.{nearest(value, known)}")
        for name, count in (("window_length", window_length), ("track_num", track_num)):
            if count < 1:
                raise UserError(f"cache.{name}={count} must be at least 1.")
        if first_layer is not None and first_layer < 0:
            raise UserError(f"cache.first_layer={first_layer} must be a layer from 0 on, or null.")
        self.window_length, self.gamma, self.track_num, self.similarity = window_length, gamma, track_num, similarity
        self.trigger, self.block_caching, self.first_layer = trigger, block_caching, first_layer

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return Drifting(canvas, config, self)


class Drifting(Buffered):
    """tracked [B, L]: decided positions under watch; inputs: what entered each layer, [B, L, D]; boundary [B]: the
    first layer of this forward that computes everything; window [B, L]: the rows that predict the window."""

    def __init__(self, canvas: Canvas, config: ModelConfig, policy: Elastic) -> None:
        super().__init__(canvas, config)
        self.policy = policy
        self.tracked = torch.zeros_like(canvas.masked)
        self.boundary, self.later = (torch.zeros_like(canvas.start) for _ in range(2))
        self.inputs: list[Tensor] = []
        self.past = Past()

    def queries(self, canvas: Canvas, span: Span, upcoming: Tensor | None) -> Plan:
        may = canvas.undecided & span.inside
        window = may & (may.cumsum(1) <= self.policy.window_length)
        live = window if self.policy.block_caching else may
        self.window, self.decided = predictors(live, canvas, self.config), ~canvas.undecided & canvas.valid
        begun, layers = span.turn > 0, self.config.layers
        self.boundary = torch.where(begun, self.later, 0)
        self.later = torch.full_like(self.later, layers if self.policy.first_layer is None else self.policy.first_layer)
        self.watched, self.tracked = self.tracked & canvas.valid, torch.zeros_like(self.tracked)
        if not bool(begun.any()):
            return Plan(ready=window)
        new = self.masks ^ canvas.masked
        return Plan(~begun[:, None] | self.watched | new | self.window, ready=window)

    def begin(self, plan: Plan, candidates: Canvas, owner: Tensor | None) -> Tensor | None:
        self.columns, before = candidates.columns, self.attended
        self.bounds: list[int] = self.boundary.tolist()
        watched, window = pack(self.watched, self.columns), pack(self.window & candidates.valid, self.columns)
        self.watches, self.looks = watched, torch.cat([window, watched], 1)
        self.real = self.looks < self.length
        columns = super().begin(plan, candidates, owner)
        self.past.match(watched, self.length, self.reach, torch.equal(before, self.attended))
        self.rows, self.counts = (self.valid.sum(1), self.wanted.sum(1)), list[Tensor]()
        self._at(columns)
        return columns

    def _at(self, columns: Tensor | None) -> None:
        """Where the rows of ``looks`` are among the computed ones."""
        self.at = self.looks if columns is None else place_of(columns, self.length).gather(1, self.looks)

    def enter(
        self, layer: int, hidden: Tensor, columns: Tensor | None, project: Project
    ) -> tuple[Tensor, Tensor | None]:
        if len(self.inputs) <= layer:
            self.inputs.append(hidden.new_zeros(len(self.boundary), self.length + 1, hidden.shape[2]))
        held, lacking = self.inputs[layer], self.past.lacking(layer)
        self.old = project(rows_of(held, lacking), lacking) if self._tests(layer) and lacking.shape[1] else None
        if columns is None:
            held[:, : self.length] = hidden
        else:
            held.scatter_(1, columns.unsqueeze(-1).expand_as(hidden), hidden)
        full = self.boundary <= layer
        self.counts.append(torch.where(full, *self.rows))
        if columns is None or layer not in self.bounds:
            return hidden, columns
        if not self._reuses(layer) and bool(self.valid.all()):
            hidden, columns = held[:, : self.length], None
        else:
            columns = pack(torch.where(full[:, None], self.valid, self.wanted), self.columns)
            hidden = rows_of(held, columns)
        self._at(columns)
        return hidden, columns

    def _reuses(self, layer: int) -> bool:
        return max(self.bounds) > layer

    def _tests(self, layer: int) -> bool:
        return self._reuses(layer) and self.watches.shape[1] > 0 and self.policy.first_layer is None

    def attend(self, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        self.slots, tests, window = columns, self._tests(layer), self.looks.shape[1] - self.watches.shape[1]
        computed = None
        if self.old is not None:
            computed = attention_weights(self.old, self._room(layer, fresh)[0][:, :, : self.reach], self.visible)
        out, weights, at = attended(*self.exchange(layer, fresh, columns), self.at if tests else self.at[:, :window])
        if tests:
            self.past.now[layer] = after = picked(weights, at[:, window:])
            before, keys = self.past.old(layer, computed), self.keys.sum(1)
            alike = similarity(before, after, keys, self.policy.similarity, fresh.triton)
            self._test(layer, mean_of(alike, self.real[:, window:]))
        looking = among(at[:, :window], self.real[:, :window], weights.shape[2])
        self._track(received(weights, looking, fresh.triton))
        return out

    def _test(self, layer: int, similarity: Tensor) -> None:
        """Layers after ``layer`` recompute everything in rows [B] whose attention has drifted."""
        drifted = (similarity < self.policy.gamma) & self.watched.any(1) & (layer < self.boundary)
        if self.policy.trigger == "same_step":
            self.boundary = torch.where(drifted, layer + 1, self.boundary)
            self.bounds = self.boundary.tolist()
        else:
            self.later = torch.where(drifted & (self.later == self.config.layers), layer + 1, self.later)

    def _track(self, total: Tensor) -> None:
        """Watch the decided positions that the window attends to most, ``total`` [B, S] of all its rows and heads."""
        keys = total.shape[1]
        best = strongest(torch.where(self.decided[:, :keys], total, 0.0), self.policy.track_num)
        self.tracked[:, :keys] |= best

    def count(self) -> Work:
        queries = torch.stack(self.counts, 1)
        whole = queries == self.valid.sum(1, keepdim=True)
        return Work(queries, self.keys.sum(1, keepdim=True).expand_as(queries), queries * whole)

    def select(self, rows: Tensor) -> Session:
        self.inputs, self.past = [held[rows] for held in self.inputs], self.past.select(rows)
        self.tracked, self.boundary, self.later = self.tracked[rows], self.boundary[rows], self.later[rows]
        return super().select(rows)
