"""Refresh the layers after the one in which attention drifts (Elastic-Cache, arXiv 2510.14973)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from dllm.cache.base import AnySession
from dllm.cache.buffer import Buffered, BufferSession, CacheView
from dllm.cache.buffer_memory import BufferMemory
from dllm.cache.calls import Group
from dllm.cache.columns import KeptRows, gather_rows, index_of, predictors
from dllm.cache.drift import PreviousAttention, attended, attention_received, attention_similarity, strongest
from dllm.cache.passes import Call, ForwardPass
from dllm.contract import ForwardCost, ForwardPlan, State
from dllm.contract.canvas import Canvas, packed
from dllm.errors import in_choices, in_range
from dllm.models.attention import attention_weights
from dllm.models.config import ModelConfig
from dllm.models.memory import Memory, Projected


class Elastic(Buffered):
    """A forward computes the leftmost ``window_length`` masks (only these may be committed), what was just committed,
    and the ``track_num`` decided positions that the window attends to most in each layer. If the attention of these has
    changed in a layer (similarity to their last attention below ``gamma``), all later layers refresh: they compute
    the whole canvas.

    similarity: cosine over ``heads`` for every tracked position and key, or over ``keys`` for every head, averaged.
    trigger: ``same_step`` refreshes in the same forward (published; a decision per layer), ``next_step`` in the next
    one (a decision per forward). block_caching False: every mask is computed. first_layer: every forward refreshes from
    this layer on, and none is tested for drift (0: no cache at all).
    """

    traits = Buffered.traits.but(shadows=False)

    def __init__(
        self, window_length: int = 16, gamma: float = 0.9, track_num: int = 1, similarity: str = "heads",
        trigger: str = "same_step", block_caching: bool = True, first_layer: int | None = None,
    ) -> None:  # fmt: skip
        if first_layer is None:
            in_range("cache.gamma", gamma, 0.0, 1.0, "0 never refreshes. cache.first_layer=0 forces a refresh always.")
        in_choices("cache.similarity", similarity, ("heads", "keys"))
        in_choices("cache.trigger", trigger, ("same_step", "next_step"))
        in_range("cache.window_length", window_length, 1)
        in_range("cache.track_num", track_num, 1)
        in_range("cache.first_layer", first_layer, 0, advice="It is a layer, or null.")
        self.window_length, self.gamma, self.track_num, self.similarity = window_length, gamma, track_num, similarity
        self.trigger, self.block_caching, self.first_layer = trigger, block_caching, first_layer

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> AnySession:
        return ElasticSession(self, canvas, config)

    def state(self, canvas: Canvas) -> State:
        """window [B, L]: the columns that predict the last plan's window. tracked [B, L]: decided positions to watch.
        later [B]: the first layer that computes the whole canvas in the next forward."""
        return {"window": canvas.no_positions, "tracked": canvas.no_positions, "later": torch.zeros_like(canvas.start)}

    def plan(self, view: CacheView) -> ForwardPlan:
        canvas, blocks = view.canvas, view.blocks
        may = canvas.undecided & blocks.in_open
        window = may & (may.cumsum(1) <= self.window_length)
        live = predictors(window if self.block_caching else may, canvas, view.config)
        first, new = (blocks.turn == 0)[:, None], view.masks ^ canvas.masked
        columns = first | view.state["tracked"] | new | live
        return view.plan(columns, committable=window, state={"window": live})


@dataclass
class Track:
    """What a forward finds out from layer to layer: written while the network runs, where the pass itself is fixed."""

    bound: Tensor  # [B] first layer that computes the whole canvas
    later: Tensor  # [B] the same of the next forward
    bounds: list[int]  # ``bound`` on the host
    widened: bool  # some row computes the whole canvas by now
    ran: list[int] = field(default_factory=list)  # rows that each layer computed
    # by layer, [B, S] attention that the window gives to each column
    received: list[Tensor] = field(default_factory=list)

    def whole(self, layers: Tensor | int) -> Tensor:
        """Rows [B, 1] in which a layer computes the whole canvas, or of several layers [B, l]."""
        return self.bound[:, None] <= layers

    def reuses(self, layer: int) -> bool:
        """Whether any row reuses columns in a layer."""
        return max(self.bounds) > layer


@dataclass(frozen=True)
class DriftPass(ForwardPass):
    """A forward that reads attention to find out how far the cache has drifted."""

    decided: Tensor  # [B, L] columns that may be watched next
    columns: Tensor  # [L] 0 to L - 1
    probes: Tensor  # [B, w + r] columns whose attention is read: w of the window, then r watched ones (L: no column)
    in_window: Tensor  # [B, w] which of the first w are columns
    mean: Tensor  # [B, r] weights of the watched ones that turn a sum into a mean
    seen: Tensor  # [B] keys of each row
    progress: Track  # what was read, layer after layer


class ElasticSession(BufferSession[DriftPass]):
    """inputs, queried: what entered each layer [B, L + 1, D], and its queries [B, L + 1, H, h]. past: weights of the
    rows watched in the last forward."""

    policy: Elastic

    def __init__(self, policy: Elastic, canvas: Canvas, config: ModelConfig) -> None:
        super().__init__(policy, canvas, config)
        self.gapless = False  # attention weights are computed under the mask
        self.past, self.inputs, self.queried = PreviousAttention(), KeptRows(self.length), KeptRows(self.length)

    def parts(self, widths: Sequence[int], device: torch.device) -> list[Group]:
        """One call, because the rows that compute everything show only from layer to layer."""
        return [Group(None, max(widths))]

    def own_pass(self, forward: ForwardPass, plan: ForwardPlan, candidates: Canvas) -> DriftPass:
        valid, columns, bound = candidates.valid, candidates.columns, plan.state["later"]
        same_keys = torch.equal(plan.state["attended"], valid)
        (call,) = forward.calls
        in_window, is_watched = plan.state["window"] & valid, plan.state["tracked"] & valid
        window, watched = packed(in_window, columns), self.past.match(is_watched, columns, call.reach, same_keys)
        probes, real = torch.cat([window, watched], 1), watched < self.length
        if call.columns is not None:  # first the rows that are read, so that their weights need no copy
            ordered = torch.cat([probes, packed(forward.queries & ~in_window & ~is_watched, columns)], 1)
            call = replace(call, columns=ordered, slots=ordered)
        first = self.config.layers if self.policy.first_layer is None else self.policy.first_layer
        return DriftPass(
            **vars(replace(forward, calls=(call,))), decided=~candidates.undecided & valid, columns=columns,
            probes=probes, in_window=window < self.length, mean=real / real.sum(1, keepdim=True).clamp(min=1),
            seen=forward.keys.sum(1),
            progress=Track(bound, torch.full_like(bound, first), bound.tolist(), forward.whole),
        )  # fmt: skip

    def memory(self, forward: DriftPass, call: Call) -> Memory:
        return ElasticMemory(self, forward, call)

    def cost(self, forward: DriftPass, scored: Tensor) -> ForwardCost:
        layers = torch.arange(self.config.layers, device=forward.valid.device)
        # A test changes later layers only, so the final bounds hold for every layer.
        valid, wanted = forward.valid.sum(1, keepdim=True), forward.queries.sum(1, keepdim=True)
        queries = torch.where(forward.progress.whole(layers), valid, wanted)
        ran = forward.progress.ran
        computed = torch.full_like(queries, ran[0])
        for layer in range(1, len(ran)):  # assigning a number copies nothing from the host; it changes once or twice
            if ran[layer] != ran[layer - 1]:
                computed[:, layer:] = ran[layer]
        keys = forward.seen[:, None].expand_as(queries)
        return ForwardCost(queries, keys, queries * (queries == valid), computed, scored)

    def join(self, fresh: Self) -> Self:
        super().join(fresh)
        for kept in (self.inputs, self.queried):
            kept.grow(self.rows, self.length)
        self.past = PreviousAttention()  # its weights are over other keys; the old queries give new ones
        return self

    def select(self, rows: Tensor) -> Self:
        for part in (self.inputs, self.queried, self.past):
            part.select(rows)
        return super().select(rows)


class ElasticMemory(BufferMemory[DriftPass]):
    """Widens a forward from the layer on in which the attention of a watched row has drifted."""

    session: ElasticSession
    widens = True

    def enter(self, layer: int, hidden: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor | None]:
        forward, progress = self.forward, self.forward.progress
        held = self.session.inputs.put(layer, hidden, columns)
        if columns is not None and layer in progress.bounds:
            progress.widened = True
            if not progress.reuses(layer) and bool(forward.valid.all()):
                hidden, columns = held[:, : self.session.length], None
            else:
                valid, wanted, everything = (
                    self.copies(x, held.device) for x in (forward.valid, forward.queries, forward.columns)
                )
                progress.bound = progress.bound.to(held.device)
                columns = packed(torch.where(progress.whole(layer), valid, wanted), everything)
                hidden = gather_rows(held, columns)
        progress.ran.append(hidden.shape[1])
        return hidden, columns

    def attend(self, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        session, forward, progress = self.session, self.forward, self.forward.progress
        self.call = replace(self.call, columns=columns, slots=columns)
        device, window, before = fresh.query.device, forward.in_window.shape[1], None
        probes, in_window, lacking = (
            self.copies(one, device) for one in (forward.probes, forward.in_window, session.past.lacking(layer))
        )
        if self._tests(layer) and lacking.shape[1]:
            old, mask = self.buffer(layer, fresh)[0][:, :, : self.call.reach], self.call.visible.mask
            old_query = gather_rows(session.queried.layers[layer], lacking)
            before = attention_weights(old_query, old, self.copies(mask, device))
        query, keys, values, visible = self.exchange(layer, fresh, columns)
        session.queried.put(layer, query, columns)
        self.show(layer, query, keys, visible, columns)
        few = not progress.widened and query.dtype.itemsize > 2 and not fresh.tiled
        again = None if few else index_of(probes, columns, session.length)
        out, weights = attended(query, keys, values, visible, again, fresh.tiled)
        if self._tests(layer):
            mean, seen = self.copies(forward.mean, device), self.copies(forward.seen, device)
            pair = session.past.pair(layer, before, weights[:, :, window : probes.shape[1]])
            alike = attention_similarity(*pair, seen, session.policy.similarity)
            self._test(layer, (alike * mean).sum(1))
        received = attention_received(weights[:, :, :window], in_window)
        progress.received.append(received.to(forward.valid.device))
        if len(progress.received) == session.config.layers:
            self._track()
        return out

    def _tests(self, layer: int) -> bool:
        watches = self.forward.mean.shape[1] > 0 and self.session.policy.first_layer is None
        return watches and self.forward.progress.reuses(layer)

    def _test(self, layer: int, similarity: Tensor) -> None:
        """Make layers after ``layer`` compute the whole canvas in rows whose ``similarity`` [B] is too low."""
        progress, policy, device = self.forward.progress, self.session.policy, similarity.device
        bound, later = progress.bound.to(device), progress.later.to(device)  # they follow the rows between devices
        drifted = (similarity < policy.gamma) & self.copies(self.forward.mean, device).any(1) & (layer < bound)
        if policy.trigger == "next_step":
            progress.later = torch.where(drifted & (later == self.session.config.layers), layer + 1, later)
        else:
            progress.bound = torch.where(drifted, layer + 1, bound)
            progress.bounds = progress.bound.tolist()

    def _track(self) -> None:
        """After the last layer: watch the decided positions that each layer's window attends to most."""
        session, progress, home = self.session, self.forward.progress, self.forward.valid.device
        keys = self.call.reach
        progress.bound, progress.later = progress.bound.to(home), progress.later.to(home)
        found = torch.where(self.forward.decided[:, :keys], torch.stack(progress.received), 0.0)
        most = strongest(found, session.policy.track_num) & (found > 0)  # an empty window attends to nothing
        tracked = torch.zeros_like(self.forward.decided)
        tracked[:, :keys] = most.any(0)
        self.forward.noted.update(tracked=tracked, later=progress.later)
