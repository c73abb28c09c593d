"""Elastic-Cache: refresh when attention drifts, from the layer on in which it does (arXiv 2510.14973)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dllm.blocks.base import Span
from dllm.cache.base import Cache, Call, Plan, Session
from dllm.cache.buffer import Buffered
from dllm.cache.drift import SIMILARITIES, Past, attended, attention_weights, strongest
from dllm.cache.rows import Rows, places, predictors, rows_of
from dllm.canvas import Canvas, pack
from dllm.errors import UserError, in_range, nearest
from dllm.kernels.attention_received import attention_received
from dllm.kernels.attention_similarity import attention_similarity
from dllm.models.config import ModelConfig
from dllm.models.transformer import Projected
from dllm.record.cost import ForwardCost

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
    """tracked [B, L]: decided positions under watch; inputs, asked: what entered each layer [B, L + 1, D], and
    its queries [B, L + 1, H, h]; bounds: the first layer of this forward that computes everything in each row, later
    [B]: of the next; window [B, L]: the rows that predict the window; ran: rows that each layer computed."""

    state = (*Buffered.state, "tracked", "later")

    def __init__(self, canvas: Canvas, config: ModelConfig, policy: Elastic) -> None:
        super().__init__(canvas, config)
        self.policy = policy
        self.tracked, self.later = torch.zeros_like(canvas.masked), torch.zeros_like(canvas.start)
        self.inputs, self.asked = Rows(self.length), Rows(self.length)
        self.past = Past()

    def queries(self, canvas: Canvas, span: Span, upcoming: Tensor | None) -> Plan:
        may = canvas.undecided & span.inside
        window = may & (may.cumsum(1) <= self.policy.window_length)
        live = window if self.policy.block_caching else may
        self.window, self.decided = predictors(live, canvas, self.config), ~canvas.undecided & canvas.valid
        begun, layers = span.turn > 0, self.config.layers
        self.bound = torch.where(begun, self.later, 0)
        self.bounds: list[int] = self.bound.tolist()
        self.later = torch.full_like(self.later, layers if self.policy.first_layer is None else self.policy.first_layer)
        self.watched = self.tracked & canvas.valid
        if not bool(begun.any()):
            return Plan(ready=window)
        new = self.masks ^ canvas.masked
        return Plan(~begun[:, None] | self.watched | new | self.window, ready=window)

    def parts(self, widths: Sequence[int], device: torch.device) -> list[tuple[Tensor | None, int]]:
        """One call: which rows compute everything shows only from layer to layer."""
        return [(None, max(widths))]

    def begin(self, plan: Plan, candidates: Canvas, owner: Tensor | None) -> Sequence[Call]:
        self.columns, before, self.totals = candidates.columns, self.attended, list[Tensor]()
        (call,) = super().begin(plan, candidates, owner)
        columns, self.reach, self.ran = call.columns, call.reach, list[int]()
        window = pack(self.window & candidates.valid, self.columns)
        watched = self.past.match(self.watched, self.columns, self.reach, torch.equal(before, self.attended))
        self.looks, self.looking = torch.cat([window, watched], 1), window < self.length
        real = watched < self.length
        self.share = real / real.sum(1, keepdim=True).clamp(min=1)  # [B, r]: makes a mean of a sum
        self.watches, self.seen = real.any(1), self.keys.sum(1)
        if columns is not None:  # first the rows that are looked at, so that their weights need no copy
            rest = pack(self.wanted & ~self.window & ~self.watched, self.columns)
            columns = torch.cat([self.looks, rest], 1)
        self.widened = columns is None
        return [replace(call, columns=columns, slots=columns)]

    def enter(self, layer: int, hidden: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor | None]:
        held = self.inputs.put(layer, hidden, columns)
        if columns is not None and layer in self.bounds:
            self.widened = True
            if not self._reuses(layer) and bool(self.valid.all()):
                hidden, columns = held[:, : self.length], None
            else:
                valid, wanted, all_ = (self.copies(x, held.device) for x in (self.valid, self.wanted, self.columns))
                self.bound = self.bound.to(held.device)
                columns = pack(torch.where(self._full(layer), valid, wanted), all_)
                hidden = rows_of(held, columns)
        self.ran.append(hidden.shape[1])
        return hidden, columns

    def _full(self, layers: Tensor | int) -> Tensor:
        """Rows [B, 1] in which a layer computes everything, or of several layers [B, l]."""
        return self.bound[:, None] <= layers

    def _reuses(self, layer: int) -> bool:
        return max(self.bounds) > layer

    def _tests(self, layer: int) -> bool:
        return self._reuses(layer) and self.share.shape[1] > 0 and self.policy.first_layer is None

    def attend(self, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        self.call = replace(self.call, columns=columns, slots=columns)
        device, window, computed = fresh.query.device, self.looking.shape[1], None
        looks, looking, lacking = (
            self.copies(one, device) for one in (self.looks, self.looking, self.past.lacking(layer))
        )
        if self._tests(layer) and lacking.shape[1]:
            before, visible = self._room(layer, fresh)[0][:, :, : self.reach], self.copies(self.call.visible, device)
            computed = attention_weights(rows_of(self.asked.layers[layer], lacking), before, visible)
        query, keys, values, visible = self.exchange(layer, fresh, columns)
        self.asked.put(layer, query, columns)
        few = not self.widened and query.dtype.itemsize > 2
        out, weights = attended(query, keys, values, visible, None if few else places(looks, columns, self.length))
        if self._tests(layer):
            share, seen = self.copies(self.share, device), self.copies(self.seen, device)
            pair = self.past.pair(layer, computed, weights[:, :, window : looks.shape[1]])
            self._test(layer, (attention_similarity(*pair, seen, self.policy.similarity, fresh.triton) * share).sum(1))
        self.totals.append(attention_received(weights[:, :, :window], looking, fresh.triton))
        return out if len(self.totals) < self.config.layers else self._track(out)

    def _test(self, layer: int, similarity: Tensor) -> None:
        """Layers after ``layer`` recompute everything in rows [B] whose attention has drifted."""
        device = similarity.device
        drifted = (similarity < self.policy.gamma) & self.copies(self.watches, device)
        self.bound = self.bound.to(device)  # with the rows, from device to device
        if self.policy.trigger == "next_step":
            self.later = self.later.to(device)
            first = drifted & (self.later == self.config.layers) & ~self._full(layer)[:, 0]
            self.later = torch.where(first, layer + 1, self.later)
            return
        self.bound = torch.where(drifted & (layer < self.bound), layer + 1, self.bound)
        self.bounds = self.bound.tolist()

    def _track(self, out: Tensor) -> Tensor:
        """After the last layer: watch the decided positions that each layer's window attends to most."""
        keys, self.tracked, home = self.reach, torch.zeros_like(self.tracked), self.tracked.device
        self.bound, self.later = self.bound.to(home), self.later.to(home)
        places = dict.fromkeys(total.device for total in self.totals)
        together = [torch.stack([total for total in self.totals if total.device == place]).to(home) for place in places]
        found = torch.where(self.decided[:, :keys], torch.cat(together), 0.0)
        most = strongest(found, self.policy.track_num) & (found > 0)  # of nothing (an empty window) nothing is most
        self.tracked[:, :keys] = most.any(0)
        return out

    def count(self) -> ForwardCost:
        layers = torch.arange(self.config.layers, device=self.wanted.device)
        # A test lets only later layers compute everything: what the bounds are in the end, they were in every layer.
        valid, wanted = self.valid.sum(1, keepdim=True), self.wanted.sum(1, keepdim=True)
        queries = torch.where(self._full(layers), valid, wanted)
        whole = queries == valid
        computed = torch.full_like(queries, self.ran[0])
        for layer in range(1, len(self.ran)):  # a number is no copy from the host; it changes once or twice
            if self.ran[layer] != self.ran[layer - 1]:
                computed[:, layer:] = self.ran[layer]
        return ForwardCost(queries, self.keys.sum(1, keepdim=True).expand_as(queries), queries * whole, computed)

    def select(self, rows: Tensor) -> Session:
        for part in (self.inputs, self.asked, self.past):
            part.select(rows)
        return super().select(rows)
