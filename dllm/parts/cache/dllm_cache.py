"""Keep what attention and MLP of every layer gave, and recompute the rows that moved (dLLM-Cache, arXiv 2506.06295)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dllm.common.errors import in_range
from dllm.common.ranking import top_k_mask
from dllm.common.ranks import Ranks
from dllm.contract import ForwardCost, ForwardPlan, State
from dllm.contract.canvas import Canvas, packed
from dllm.contract.setting import Setting
from dllm.models.config import ModelConfig
from dllm.models.network.memory import AnyLayer, Memory
from dllm.models.network.rope import Angles
from dllm.parts.cache.buffer import Buffered, CacheView, ColumnSession
from dllm.parts.cache.buffer_memory import BufferMemory
from dllm.parts.cache.columns import gather_padded, gather_rows
from dllm.parts.cache.kept import LAYER_KEYS, LAYER_VALUES, PER_PLACE, Kept
from dllm.parts.cache.passes import Call, ForwardPass

SAME = 1e-24  # squared distances of unit vectors below this are rounding, which differs with the batch


class DLLMCache(Buffered):
    """Every row is alive in every layer. A row that a layer does not compute adds what attention and MLP gave there the
    last time. Every ``prompt_interval``-th forward of a row computes the prompt, every ``response_interval``-th the
    answer, and the first layer computes everything in every forward. Between them each layer computes the ``share`` of
    the answer's rows whose value vectors have turned the most since the last forward.

    query_left matters for models that predict from the position before (Dream): with it the row that predicts the
    answer's first position belongs to the answer, without it (the published code) to the prompt.
    """

    # a layer has no queries of the rows that it does not compute
    traits = Buffered.traits.but(
        regions=frozenset({"block", "suffix", "ahead", "answer"}),
        attends_all=True,
        scores_all_at_open=True,
        committed=True,
        shadows=False,
        exposes_attention=False,
        heads="summed",
        bounded_shapes=True,
        acts_in_layers=True,
        one_call=True,
    )

    def __init__(
        self, prompt_interval: int = 50, response_interval: int = 7, share: float = 0.25, query_left: bool = True
    ) -> None:
        in_range("cache.prompt_interval", prompt_interval, 1, advice="1 computes the prompt in every forward.")
        in_range("cache.response_interval", response_interval, 1, advice="1 computes the answer in every forward.")
        in_range("cache.share", share, 0.0, 1.0)
        self.prompt_interval, self.response_interval = prompt_interval, response_interval
        self.share, self.query_left = share, query_left

    def warning(self, setting: Setting) -> str | None:
        if self.response_interval == 1 or self.share == 1:
            return None
        return (
            f"cache.response_interval={self.response_interval}: rows of the answer that a forward does not compute lag "
            "after what was committed: mini-llada gets 66 % right, and 95 % with cache.response_interval=1. Set that, "
            "or compare your own answers with cache=none."
        )

    def kept(self) -> tuple[Kept, ...]:
        """Beside keys and values, what attention and MLP of each layer but the first gave."""
        outputs = (
            Kept(name, lambda config, layer: (PER_PLACE, config.width), from_layer=1) for name in ("attention", "mlp")
        )
        return LAYER_KEYS, replace(LAYER_VALUES, compared=True), *outputs

    def state(self, canvas: Canvas) -> State:
        """due [B, L]: columns that every layer of the coming forward computes. selectable [B, L]: columns among which
        a layer chooses by their values."""
        return {"due": canvas.valid, "selectable": canvas.no_positions}

    def plan(self, view: CacheView) -> ForwardPlan:
        turn, valid, answer = view.blocks.turn[:, None], view.canvas.valid, self.response(view.canvas, view.config)
        due = torch.where(answer, turn % self.response_interval == 0, turn % self.prompt_interval == 0) & valid
        return view.plan(valid, state={"due": due, "selectable": answer & ~due & (self.share > 0)})

    def count_computed(self, selectable: Tensor) -> Tensor:
        """How many of the ``selectable`` columns [B, L] a layer computes [B]: where it chooses, they are the answer."""
        return (selectable.sum(1).double() * self.share).floor().long()

    def response(self, canvas: Canvas, config: ModelConfig) -> Tensor:
        """The columns [B, L] that belong to the answer."""
        left = int(self.query_left and config.prediction_shift > 0)
        return canvas.valid & (canvas.columns >= canvas.start[:, None] - left)

    def widths(self, plan: ForwardPlan, config: ModelConfig) -> list[Tensor]:
        """The columns among which layers choose, and those that layers compute."""
        due, selectable = plan.state["due"], plan.state["selectable"]
        return [selectable.sum(1), due.sum(1) + self.count_computed(selectable)]

    def own_pass(
        self, session: ColumnSession, forward: ForwardPass, plan: ForwardPlan, candidates: Canvas
    ) -> FeaturePass:
        due, selectable = plan.state["due"] & forward.valid, plan.state["selectable"] & forward.valid
        (call,), columns, count = forward.calls, candidates.columns, self.count_computed(selectable)
        among, width = plan.shapes.most or (None, None)
        slots = places = packed(selectable, columns, among)
        if call.columns is not None:
            due, selectable = (gather_padded(rows, call.columns, False) for rows in (due, selectable))
            places = packed(selectable, columns[: call.columns.shape[1]], slots.shape[1])
        return FeaturePass(
            **vars(forward),
            due=due,
            selectable=selectable,
            places=places,
            slots=slots,
            count=count,
            everything=forward.whole and plan.shapes.all(due),
            width=width,
            layers=session.config.layers,
        )

    def memory(self, session: ColumnSession, forward: ForwardPass, call: Call) -> Memory:
        return FeatureMemory(session, forward, call)


@dataclass(frozen=True)
class FeaturePass(ForwardPass):
    """Which of the n rows that enter the layers of its one call are computed."""

    due: Tensor  # [B, n] rows that every layer computes
    selectable: Tensor  # [B, n] rows among which a layer chooses by their values
    places: Tensor  # [B, g] where these are among the n (n or more: padding)
    slots: Tensor  # [B, g] their columns (L: padding)
    count: Tensor  # [B] how many of them are computed
    everything: bool  # the host knows that every row is due
    width: int | None  # the most rows that a layer but the first computes (None: ask the device)
    layers: int  # of the network
    # by layer, the rows that it chose by their values [B, n] (None: it chose none)
    selections: list[Tensor | None] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)  # by layer, the rows that it computed, padding included

    def cost(self, scored_rows: Tensor) -> ForwardCost:
        first = torch.arange(self.layers, device=self.valid.device) == 0
        valid = self.valid.sum(1, keepdim=True)
        queries = torch.where(first, valid, (self.due.sum(1) + self.count)[:, None])
        rows_run = torch.where(first, self.widths[0], torch.full_like(queries, self.widths[-1]))
        values = torch.where(first, 0, self.selectable.sum(1, keepdim=True))
        keys = valid.expand_as(queries)
        return ForwardCost(queries, keys, queries * (queries == valid), rows_run, scored_rows, values=values)


class FeatureMemory(BufferMemory):
    """Computes some rows of each layer, and takes what is kept of the others."""

    forward: FeaturePass

    def run(
        self, index: int, layer: AnyLayer, x: Tensor, residual: Tensor | None, angles: Angles, columns: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        hidden, normal = layer.entered(x, residual)
        at, columns_computed, attention, mlp_output = self._computed_places(index, layer, normal), columns, None, None
        if at is not None:
            columns_computed = at if columns is None else gather_padded(columns, at, self.session.length)
            normal, angles = gather_rows(normal, at), Angles(gather_rows(angles.cos, at), gather_rows(angles.sin, at))
        self.forward.widths.append(normal.shape[1])
        if normal.shape[1]:
            self.call = replace(self.call, columns=columns_computed, slots=columns_computed)
            attention = layer.mixed(self.attend(index, layer.projected(normal, angles), columns_computed))
        hidden = hidden + self._all("attention", index, attention, columns_computed, columns)
        if normal.shape[1]:
            mlp_output = layer.fed(hidden if at is None else gather_rows(hidden, at))
        return hidden, self._all("mlp", index, mlp_output, columns_computed, columns)

    def _all(
        self, name: str, index: int, fresh: Tensor | None, columns_computed: Tensor | None, columns: Tensor | None
    ) -> Tensor:
        """What is known of all rows [B, n, D] after ``fresh`` ones (None: without any) were kept. The first layer,
        which computes all of them, keeps none."""
        if index == 0:
            assert fresh is not None
            return fresh
        store = self.session.kept[name]
        rows = store.layers[index] if fresh is None else store.put(index, fresh, columns_computed)
        return rows[:, : self.session.length] if columns is None else gather_rows(rows, columns)

    def _computed_places(self, index: int, layer: AnyLayer, normal: Tensor) -> Tensor | None:
        """Places [B, u] among the rows that the layer computes (n: padding). None: all of them."""
        forward, selection = self.forward, None
        if index == 0 or forward.everything:
            forward.selections.append(None)
            return None
        is_computed = self.copies(forward.due, normal.device)
        if forward.places.shape[1]:
            selection = self._select_by_values(index, layer, normal)
            is_computed = is_computed | selection
        forward.selections.append(selection)
        return packed(is_computed, torch.arange(normal.shape[1], device=normal.device), forward.width)

    def _select_by_values(self, index: int, layer: AnyLayer, normal: Tensor) -> Tensor:
        """The rows [B, n] whose values have turned the most since the last forward. Keeps the values of all selectable
        ones. The distance of the unit vectors ranks as their cosine does, which rounds small angles to 1."""
        forward, device, store = self.forward, normal.device, self.session.stores[index]
        assert store is not None, "the first forward computes every row"
        selectable, places, slots, count = (
            self.copies(tensor, device) for tensor in (forward.selectable, forward.places, forward.slots, forward.count)
        )
        row, values = torch.arange(len(slots), device=device)[:, None], store[1].transpose(1, 2)
        fresh = layer.values(gather_rows(normal, places)).unflatten(-1, values.shape[2:])
        ranks = self.session.config.ranks  # each has the values of its heads; of a head that several have, all do
        delta = unit(fresh.flatten(2), ranks) - unit(values[row, slots].flatten(2), ranks)
        turns = ranks.sum(delta.square().sum(-1))
        values.index_put_((row, slots), fresh)
        score = turns.new_zeros(len(normal), normal.shape[1] + 1).scatter(1, places, turns.masked_fill(turns < SAME, 0))
        return top_k_mask(score[:, :-1], selectable, count)


def unit(vectors: Tensor, ranks: Ranks) -> Tensor:
    """Vectors [..., K] in float64, scaled so that they have length 1 over all ranks."""
    wide = vectors.double()
    return wide / ranks.norm(wide.norm(dim=-1, keepdim=True)).clamp(min=1e-8)
