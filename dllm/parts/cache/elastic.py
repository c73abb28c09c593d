"""Refresh the layers after the one in which attention drifts (Elastic-Cache, arXiv 2510.14973).

The published code tests layer by layer, and the host waits for each answer before it runs the next layer. Here all
layers run narrow first, and the tests stay on the device. Then the host asks once in which layer each row has drifted
first, and those rows run again, whole, from the next layer on. A test of one row reads nothing of another, and up to
its first drift a row computes the same in both orders; what it computed narrow after it is overwritten. So tokens and
costs are those of the published order (``ask_every=1``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from dllm.common.errors import in_choices, in_range
from dllm.contract import ForwardPlan, State
from dllm.contract.canvas import Canvas, packed
from dllm.contract.shapes import HostView
from dllm.kernels.add_norm import KeepRows
from dllm.kernels.attention_scores import attention_scores
from dllm.kernels.drift_sums import drift_sums
from dllm.models.config import ModelConfig
from dllm.models.network.attention import attention_weights
from dllm.models.network.memory import AnyLayer, AnyStack, Memory, Projected, summed
from dllm.models.network.rope import Angles
from dllm.parts.cache.buffer import Buffered, CacheView, ColumnSession
from dllm.parts.cache.buffer_memory import BufferMemory
from dllm.parts.cache.columns import gather_rows, predictors
from dllm.parts.cache.drift import attention_and_weights, attention_received, by_layer, products, strongest
from dllm.parts.cache.drifted_rows import DriftPass, Redo, WholeRows, parts_of_plan
from dllm.parts.cache.kept import LAYER_KEYS, LAYER_VALUES, PER_PLACE, Kept
from dllm.parts.cache.passes import Call, ForwardPass

REDO_STARTS = 8  # layers from which recordings run rows again, spread over the network


class Elastic(Buffered):
    """A forward computes the leftmost ``window_length`` masks (only these may be committed), what was just committed,
    and the ``track_num`` decided positions that the window attends to most in each layer. If the attention of these has
    changed in a layer (similarity to their last attention below ``gamma``), all later layers refresh: they compute
    the whole canvas.

    similarity: cosine over ``heads`` for every tracked position and key, or over ``keys`` for every head, averaged.
    trigger: ``same_step`` refreshes in the same forward (published; a decision per layer), ``next_step`` in the next
    one (a decision per forward). block_caching False: every mask is computed. first_layer: every forward refreshes from
    this layer on, and none is tested for drift (0: no cache at all). ask_every: layers that run narrow before the host
    asks which rows have drifted in them (None: all layers); it changes what is computed, and nothing that is found.
    """

    traits = Buffered.traits.but(
        shadows=False,
        bounded_shapes=True,
        acts_in_layers=True,
        one_call=True,
        asks=True,
        facts=1,
        heads="summed",
        bounds_late=True,
        bounds_by_masks=True,
        full_on_open=False,
    )

    def __init__(
        self,
        window_length: int = 16,
        gamma: float = 0.9,
        track_num: int = 1,
        similarity: str = "heads",
        trigger: str = "same_step",
        block_caching: bool = True,
        first_layer: int | None = None,
        ask_every: int | None = None,
    ) -> None:
        if first_layer is None:
            in_range("cache.gamma", gamma, 0.0, 1.0, "0 never refreshes. cache.first_layer=0 forces a refresh always.")
        in_choices("cache.similarity", similarity, ("heads", "keys"))
        in_choices("cache.trigger", trigger, ("same_step", "next_step"))
        in_range("cache.window_length", window_length, 1)
        in_range("cache.track_num", track_num, 1)
        in_range("cache.first_layer", first_layer, 0, advice="It is a layer, or {null}.")
        in_range("cache.ask_every", ask_every, 1, advice="It counts layers; {null} asks once for all layers.")
        self.window_length, self.gamma, self.track_num, self.similarity = window_length, gamma, track_num, similarity
        self.trigger, self.block_caching, self.first_layer = trigger, block_caching, first_layer
        self.ask_every = ask_every
        if trigger == "next_step" or first_layer is not None:  # where rows run again, the turn before alone tells
            self.traits = self.traits.but(bounds_late=False, bounds_by_masks=False, full_on_open=True)

    def kept(self) -> tuple[Kept, ...]:
        """Beside keys and values, what entered each layer, and its queries."""
        keys = replace(LAYER_KEYS, compared=True)
        inputs = Kept("inputs", lambda config, layer: (PER_PLACE, config.width))
        queries = Kept("queries", lambda config, layer: (PER_PLACE, config.heads, config.head_dim), compared=True)
        return keys, LAYER_VALUES, inputs, queries

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

    def widths(self, plan: ForwardPlan, config: ModelConfig) -> list[Tensor]:
        """The columns of the window, the watched ones and the others; these and 1 of rows that reuse some, or 0; and
        how many layers compute the whole canvas."""
        parts, later = [part.sum(1) for part in parts_of_plan(plan)], plan.state["later"]
        return [*parts, torch.where(later > 0, parts[2] + 1, 0), config.layers - later]

    def counts(self, view: CacheView) -> list[Tensor]:
        """What is left to decide, where a forward computes all of it."""
        return [] if self.block_caching else [view.canvas.undecided.sum(1)]

    def most(self, host_views: Sequence[HostView], length: int, config: ModelConfig) -> tuple[int, ...]:
        """The window, what is watched (in every layer something else), and what the last turn has committed."""
        counts = [min(self.window_length, length), *(count for row in host_views for count in row.counts)]
        window, tracked, new = max(counts), min(length, config.layers * self.track_num), counts[0]
        begins, reuses = any(row.turn == 0 for row in host_views), any(row.turn > 0 for row in host_views)
        return window, tracked, length if begins else new, (new + 1) * reuses

    def max_queries(
        self, host_views: Sequence[HostView], length: int, width: int, config: ModelConfig
    ) -> tuple[int, ...]:
        window, tracked, *_ = self.most(host_views, length, config)
        usual = min(length, window + tracked + min(self.window_length, length))
        return tuple(usual if row.turn else length for row in host_views)

    def own_pass(
        self, session: ColumnSession, forward: ForwardPass, plan: ForwardPlan, candidates: Canvas
    ) -> DriftPass:
        first = session.config.layers if self.first_layer is None else self.first_layer  # always whole from it on
        return DriftPass.of(forward, plan, candidates, first, session.config.layers)

    def memory(self, session: ColumnSession, forward: ForwardPass, call: Call) -> Memory:
        return NarrowMemory(session, forward, call)


class NarrowMemory(BufferMemory):
    """Runs the planned columns of all rows, tests them for drift, and runs the rows that have drifted again."""

    forward: DriftPass

    def __init__(self, session: ColumnSession, forward: ForwardPass, call: Call) -> None:
        super().__init__(session, forward, call)
        assert isinstance(session.policy, Elastic)
        self.policy, self.inputs, self.kept_queries = session.policy, session.kept["inputs"], session.kept["queries"]
        self.place_cache: dict[int, tuple[Tensor, Tensor]] = {}
        self.everywhere = self.forward.columns.expand(session.rows, -1)
        self.whole: WholeRows | None = None  # the rows that have run again, until `resume`; they refer to this memory

    def through(self, layers: AnyStack, x: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor | None]:
        forward, progress, count, residual = self.forward, self.forward.progress, self.session.config.layers, None
        if columns is not None:
            if forward.width < columns.shape[1]:
                self._keep(0, x, columns)
                x, columns = x[:, : forward.width], columns[:, : forward.width]
            self.call = replace(self.call, columns=columns, slots=columns)
        step = self.policy.ask_every or count if self._asks and not forward.fixed else count
        for first in range(0, count, step):
            last = min(first + step, count)
            end = last if forward.whole else min(last, max(progress.bounds))
            if first < end:
                x, residual, columns = layers(summed(x, residual), columns, self, first, end)
                progress.narrow = end
                if self._tests:
                    self._test(first, end)
            if first <= end < last:
                self._keep(end, summed(x, residual), columns)
            self.layers, self.first = layers, first
            if last < count and not forward.whole:
                progress.bounds = progress.bound.tolist()
                self.whole = self.whole or WholeRows(self, self.forward, progress.window_attention)
                self.whole.advance(layers, first, last)
        return layers.final_rows(x, residual, columns)

    def question(self) -> Tensor | None:
        """The usual way is that no row runs again."""
        return self.forward.progress.bound if self._asks else None

    def answer(self, facts: Sequence[Sequence[int]], report: Sequence[int] | None = None) -> tuple[int, ...]:
        """The first whole layer of each row; empty: the forward is whole, or no row runs again."""
        progress, count = self.forward.progress, self.session.config.layers
        if self.forward.whole:
            return ()
        if self._asks or (self.forward.fixed and [len(progress.bound)] != list(map(len, facts))):  # under guidance
            return tuple(progress.bound.tolist() if report is None else report)
        return tuple(count - whole for whole in facts[0]) if facts else tuple(progress.bounds)

    def rounded(self, answer: tuple[int, ...]) -> Redo | None:
        count = self.session.config.layers
        bounds = [bound for bound in answer if bound < count]
        if not bounds:
            return None
        step = max(1, count // REDO_STARTS)
        return Redo(min(len(answer), 1 << (len(bounds) - 1).bit_length()), min(bounds) // step * step)

    def resume(self, answer: tuple[int, ...] | Redo | None) -> None:
        progress, layers = self.forward.progress, self.layers
        # A recording goes on from the same first part again and again.
        whole = self.whole or WholeRows(self, self.forward, dict(progress.window_attention))
        self.whole = None  # else the cycle keeps a decode's memory until it is collected
        progress.redo, progress.again = None, None
        if isinstance(answer, Redo):
            progress.redo, progress.again = answer, whole.redo(layers, answer)
        elif answer:
            progress.bounds = answer
            whole.advance(layers, self.first, self.session.config.layers)
        self._show()
        self._track(whole.window_attention)
        self.reruns = [whole.final_rows(layers)] if whole.ran else []

    def _keep(self, layer: int, hidden: Tensor, columns: Tensor | None) -> None:
        """Keep rows as what enters a layer that does not run them: on its device, where they have not come yet."""
        inputs = self.inputs
        device = inputs.layers[layer].device if layer in inputs.layers else hidden.device
        inputs.put(layer, hidden.to(device), self.copies(columns, device))

    def run(
        self, index: int, layer: AnyLayer, x: Tensor, residual: Tensor | None, angles: Angles, columns: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The norm that adds up what enters a layer keeps it, too."""
        keep = KeepRows(self.inputs.flat(index, x), self._places(columns, x.device))
        return layer(x, residual, angles, columns, partial(self.attend, index), keep=keep)

    def _places(self, columns: Tensor | None, device: torch.device) -> Tensor:
        """``KeptRows.places`` (None: all columns), made in the first layer of each device."""
        if columns is None:
            columns = self.copies(self.everywhere, device)
        if id(columns) not in self.place_cache:  # holding the tensor keeps its id
            self.place_cache[id(columns)] = columns, self.inputs.places(columns)
        return self.place_cache[id(columns)][1]

    def attend(self, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        session, forward, progress = self.session, self.forward, self.forward.progress
        device, window, old = fresh.query.device, forward.window.shape[1], None
        if fresh.triton and self._by_kernels(fresh, columns):
            return self._attend_by_kernels(layer, fresh)
        probes = self.copies(forward.probes, device)
        if self._tests:
            old_queries = self.kept_queries.at(layer, self._places(self.copies(forward.tracked, device), device))
            keys = self.buffer(layer, fresh)[0][:, :, : self.call.reach]
            old = attention_weights(old_queries, keys, self.copies(self.call.visible.mask, device))
        query, keys, values, visible = self.exchange(layer, fresh, columns)
        self.kept_queries.put_at(layer, query, self._places(columns, device))
        read_queries = gather_rows(query, probes) if columns is None else query[:, : probes.shape[1]]
        few = columns is not None and query.dtype.itemsize > 2 and not fresh.tiled
        out, weights = attention_and_weights(query, keys, values, visible, None if few else read_queries, fresh.tiled)
        if old is not None:
            new = weights[:, :, window : probes.shape[1]]
            progress.products.append(products(old, new, self.policy.similarity, session.config.ranks))
        real = self.copies(forward.in_window, device) if forward.has_padding else None
        progress.window_attention[layer] = attention_received(weights[:, :, :window], real)
        return out

    def _by_kernels(self, fresh: Projected, columns: Tensor | None) -> bool:
        """Whether our kernels read attention: keys are the first ones of each row, and all heads are here."""
        policy, ranks, visible = self.policy, self.session.config.ranks, self.call.visible
        if columns is None or fresh.tiled or policy.similarity == "keys" or ranks.size > 1:
            return False
        return visible.mask is None or visible.count is not None

    def _attend_by_kernels(self, layer: int, fresh: Projected) -> Tensor:
        """Three launches beside those of any cache: old scores, new ones, and what they come to."""
        forward, progress, device, old = self.forward, self.forward.progress, fresh.query.device, None
        visible, reach, window = self.copies.of(self.call.visible, device), self.call.reach, forward.window.shape[1]
        count = visible.count
        real, mean = (self.copies(tensor, device) for tensor in (forward.in_window, forward.mean))
        self.kept_queries.flat(layer, fresh.query)
        queries, keys = self.kept_queries.layers[layer], self.buffer(layer, fresh)[0]
        if self._tests:
            tracked = self.copies(forward.tracked, device)
            old, window = attention_scores(queries, tracked, keys[:, :, :reach], count, True), window + mean.shape[1]
        query, store = self._access(device).into(layer, fresh, queries)
        keys, values = (tensor[:, :, :reach] for tensor in store)
        new = attention_scores(query[:, :window], None, keys, count, True)
        progress.window_attention[layer], similarity = drift_sums(new, old, real, mean, count, True)
        progress.similarities.append(similarity)
        return fresh.attend(query, keys, values, visible)

    @property
    def _tests(self) -> bool:
        """Whether this forward looks for drift: it reuses something, and the answer matters."""
        policy, forward = self.policy, self.forward
        matters = policy.trigger == "next_step" or not forward.whole
        return matters and policy.first_layer is None and forward.mean.shape[1] > 0 and forward.reuses

    @property
    def _asks(self) -> bool:
        """Whether the host asks which rows have drifted, to run them again in this forward."""
        return self._tests and self.policy.trigger == "same_step"

    def _test(self, first: int, end: int) -> None:
        """Find the rows that have drifted in the layers ``first`` to ``end`` - 1, for this forward or the next."""
        forward, progress, policy = self.forward, self.forward.progress, self.policy
        similarity = forward.similarity(first, end, policy.similarity, self.session.config.ranks)
        after = torch.arange(first + 1, end + 1, device=similarity.device)[:, None]
        drifted = (similarity.sum(-1) < policy.gamma) & forward.mean.any(1)
        next_layer = torch.where(drifted, after, self.session.config.layers).amin(0)  # what follows the first drift
        if policy.trigger == "same_step":
            progress.bound = torch.minimum(progress.bound, next_layer)
        else:
            next_drift = torch.where(next_layer <= progress.bound, next_layer, self.session.config.layers)
            progress.later = torch.minimum(progress.later, next_drift)

    def _show(self) -> None:
        """Let the reader see all layers. What rows computed that ran again is written only now."""
        session, forward, progress, reader = self.session, self.forward, self.forward.progress, self.reader
        for layer in range(session.config.layers):
            if reader is None or not reader.reads(layer):
                continue
            store, columns = session.stores[layer], self.call.columns
            assert store is not None, "every layer has run"
            if not forward.whole and min(progress.bounds) <= layer:
                columns = packed(torch.where(progress.whole(layer), forward.valid, forward.queries), forward.columns)
            queries, device = self.kept_queries.layers[layer], store[0].device
            query = queries[:, :-1] if columns is None else gather_rows(queries, self.copies(columns, device))
            visible = self.copies.of(self.call.visible, device)
            reader.read(layer, query, store[0][:, :, : self.call.reach], visible, columns)

    def _track(self, window_attention: dict[int, Tensor]) -> None:
        """After the last layer: watch the decided positions that each layer's window attends to most."""
        forward, progress, keys = self.forward, self.forward.progress, self.call.reach
        attention = by_layer([window_attention[layer] for layer in sorted(window_attention)], forward.valid.device)
        attention = self.session.config.ranks.sum(attention)  # over heads
        decided_attention = torch.where(forward.decided[:, :keys], attention, 0.0)
        # an empty window attends to nothing
        most = strongest(decided_attention, self.policy.track_num) & (decided_attention > 0)
        tracked = torch.zeros_like(forward.decided)
        tracked[:, :keys] = most.any(0)
        forward.notes.update(tracked=tracked, later=progress.later)
