"""Rows that will not be decided leave the forward after the second layer's projections (FOCUS, arXiv 2601.23278).

For models that are causal by blocks. A block keeps its keys between forwards, and a decided column is computed until it
and its right neighbour have been decided for a forward. Of the masks only those go on to the deep layers whose
importance among the masks grows from the first layer to the second.

Sizes after the choice are known on the device alone, so the host asks once a forward: for the widest row that goes on.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dllm.common.errors import Set, in_range
from dllm.common.rowwise import select_or_all
from dllm.contract import ForwardCost, ForwardPlan, State
from dllm.contract.canvas import Canvas, packed
from dllm.contract.clash import UNGUIDED, USE_FIXED, Mismatch, Selection
from dllm.contract.shapes import bucket
from dllm.models.config import ModelConfig
from dllm.models.network.attention import Visible
from dllm.models.network.memory import AnyLayer, AnyStack, Memory, Projected, Rerun, summed
from dllm.models.network.rope import Angles
from dllm.models.network.visibility import AnswerBlocks, BlockCausal, PromptBlock
from dllm.parts.cache.base import Session
from dllm.parts.cache.buffer import Buffered, CacheView, ColumnSession
from dllm.parts.cache.buffer_memory import BufferMemory
from dllm.parts.cache.columns import gather_padded, gather_rows
from dllm.parts.cache.growth import chosen_masks, importance
from dllm.parts.cache.passes import Call, ForwardPass

_KINDS = frozenset(kind.name for kind in (BlockCausal, AnswerBlocks, PromptBlock))


def _splits(c: Selection) -> dict[str, Any] | None:
    """Whether blocks may split the model's attention block, and their length in the words of the sentence."""
    length, length_of_blocks = c.attention.block, c.blocks.fixed_length
    alone = c.blocks.traits.one_at_a_time and not c.blocks.traits.rolls_back and not c.does.lookahead
    if length_of_blocks is not None and length and not length_of_blocks % length and alone:
        return None
    return {"length": length, "own": "" if length_of_blocks is None else f" of {length_of_blocks} columns"}


class Focus(Buffered):
    """A forward computes the unsettled columns of the block: its masks, and what was decided too recently. ``alpha``:
    how many masks go on to the deep layers, in units of the tokens that a forward of this block decides on average
    (None: all, the delayed cache alone). When a block is decided, one more forward computes it whole, and commits
    nothing; it leaves exact keys.
    """

    traits = Buffered.traits.but(
        kinds=_KINDS,
        shadows=False,
        exposes_attention=False,
        bounded_shapes=True,
        full_on_open=False,
        acts_in_layers=True,
        closes=True,
        shares=True,
        facts=1,
        heads="summed",
    )
    clashes = (
        *Buffered.clashes,
        Mismatch(lambda c: c.model.layers < 3,
                 "{cache} compares two layers and saves rows of those after them, but this model has "
                 "{model.layers:value}."),
        Mismatch(lambda c: c.model.prediction_shift or c.model.seed_shift,
                 "{cache} lets the row of a mask leave, but this model predicts a position from the row before it."),
        Mismatch(_splits,
                 "{cache} keeps the model's attention block of {length:value} columns until it is decided, which "
                 "{blocks}{own:value} may split.",
                 [lambda c: USE_FIXED & Set("blocks.block_length", c.attention.block)]),
        Mismatch(lambda c: not (c.does.ranks_by and c.does.thresholds) or c.does.revocable or c.does.edits
                 or c.does.commits_ahead,
                 "{sampler} goes by more than a threshold of each position, and {cache} shows a rule some masks of the "
                 "block alone."),
        Mismatch(lambda c: c.sampling.guidance,
                 "{cache} lets columns leave a row, and {sampling.guidance} runs a second one in which others would.",
                 [UNGUIDED]),
        Mismatch(lambda c: any(read.layer is not None for read in c.reads),
                 "{cache} ends rows between layers, and a chosen part reads the states of one."),
    )  # fmt: skip

    def __init__(self, alpha: float | None = 1.5) -> None:
        in_range("cache.alpha", alpha, 1.0, advice="A multiple of what a forward decides; {null} keeps all masks.")
        self.alpha, self.traits = alpha, self.traits.but(asks=alpha is not None)

    def widths(self, plan: ForwardPlan, config: ModelConfig) -> list[Tensor]:
        """Whether some columns may leave."""
        return [(plan.state["target"] < plan.columns.shape[1]).long()]

    def own_pass(
        self, session: ColumnSession, forward: ForwardPass, plan: ForwardPlan, candidates: Canvas
    ) -> FocusPass:
        queries, masked, columns = forward.queries, candidates.masked & candidates.valid, candidates.columns
        masks = queries & masked
        width = max(1, plan.shapes.max_per_row(masks, session.length, True))
        last_decided = torch.where(queries & ~masked, columns, -1).amax(1)
        deep = {"stay": queries, "width": forward.rows_run()[:, 0]}
        places, layers = packed(masks, columns, width), session.config.layers
        return FocusPass(**vars(forward), masks=places, last_decided=last_decided, layers=layers, deep=deep)

    def memory(self, session: ColumnSession, forward: ForwardPass, call: Call) -> Memory:
        return (BufferMemory if self.alpha is None else FocusMemory)(session, forward, call)

    def state(self, canvas: Canvas) -> State:
        """exact [B, L]: columns computed when their block and all before it were decided. tokens [B, L]: those of the
        last forward. unsettled [B, L]: columns of the block that the coming forward computes besides its masks. block
        [B]: number of the block that is decoded (-1: none). progress [B]: the rightmost column that has run in all
        layers since the block opened (-1: none). decided, deciding [B]: its tokens decided by forwards, and how many
        forwards have decided some. target [B]: masks that stay in the coming forward, at least (L: all)."""
        none = torch.full_like(canvas.start, -1)
        zero, all_ = torch.zeros_like(canvas.start), torch.full_like(canvas.start, len(canvas.columns))
        return {
            "exact": canvas.no_positions,
            "tokens": canvas.tokens,
            "unsettled": canvas.no_positions,
            "block": none,
            "progress": none,
            "decisions": zero,
            "deciding_forwards": zero,
            "target": all_,
        }

    def plan(self, view: CacheView) -> ForwardPlan:
        canvas, state, config = view.canvas, view.state, view.config
        masked, columns = canvas.masked & canvas.valid, canvas.columns
        pieces = config.attention.pieces(masked, canvas.start)
        current = torch.where(masked, pieces, len(columns) + 1).amin(1)
        to_finish = canvas.valid & (pieces < current[:, None]) & ~state["exact"]  # final, and computed before it was
        closes = (state["block"] >= 0) & (current != state["block"])
        opens = ~closes & (state["block"] < 0)
        block = canvas.valid & (pieces == current[:, None])
        live = block & torch.where(opens[:, None], block, state["unsettled"] | masked) & ~closes[:, None]
        reach = torch.where(live, columns, -1).amax(1)
        decisions, deciding_forwards = self._decision_counts(view, block, opens)
        after = torch.cat([~masked[:, 1:] | ~block[:, 1:], torch.ones_like(masked[:, :1])], 1)
        new = {
            "exact": state["exact"] | to_finish & (closes | opens)[:, None],
            "tokens": canvas.tokens,
            "unsettled": live & (masked | ~after),
            "block": torch.where(closes, -1, current),
            "progress": torch.where(opens, -1, state["progress"]),
            "decisions": decisions,
            "deciding_forwards": deciding_forwards,
            "target": self._target((masked & live).sum(1), decisions, deciding_forwards, len(columns)),
        }
        queries = live | to_finish & (closes | opens)[:, None]
        keys = canvas.valid & (queries | new["exact"] | block & (columns <= reach[:, None]))
        return view.plan(queries, committable=canvas.valid & ~closes[:, None], keys=keys, state=new)

    def _decision_counts(self, view: CacheView, block: Tensor, opens: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens of the ``block`` [B, L] that forwards have decided so far [B], and how many of these did [B]."""
        new = (block & view.masks & ~view.canvas.masked).sum(1)
        decisions, deciding_forwards = view.state["decisions"] + new, view.state["deciding_forwards"] + (new > 0)
        return decisions.masked_fill(opens, 0), deciding_forwards.masked_fill(opens, 0)

    def _target(self, masks: Tensor, decisions: Tensor, deciding_forwards: Tensor, all_: int) -> Tensor:
        """How many of the ``masks`` [B] stay at least [B]. The mean and its product with alpha are rounded to float32,
        as published: 1.5 times 4 / 3 is 2 then, not more."""
        if self.alpha is None:
            return torch.full_like(masks, all_)
        mean = (decisions / deciding_forwards.clamp(min=1)).float().clamp(min=1)
        target = (mean.double() * self.alpha).float().ceil().long()
        return torch.where(target < masks, target, all_)


@dataclass(frozen=True)
class FocusPass(ForwardPass):
    """A forward from which rows leave."""

    masks: Tensor  # [B, m] columns of the masks that it computes (L: no column)
    last_decided: Tensor  # [B] the rightmost decided column that it computes (-1: none)
    layers: int  # of the network
    # filled while it runs: ``stay`` [B, L] columns that all layers compute, ``width`` [B] how many the deep ones run
    deep: dict[str, Tensor]

    def cost(self, scored_rows: Tensor) -> ForwardCost:
        """By layer: all rows in the first, and those that stay in the others."""
        stay = self.deep["stay"]
        columns = torch.arange(stay.shape[1], device=stay.device)
        last = torch.where(stay, columns, -1).amax(1, keepdim=True)
        keys_seen = self.keys & (columns <= last)

        def by_layer(first: Tensor, deeper: Tensor) -> Tensor:
            return torch.cat([first[:, None], deeper[:, None].expand(-1, self.layers - 1)], 1)

        queries = by_layer(self.queries.sum(1), stay.sum(1))
        keys = by_layer(self.keys.sum(1), keys_seen.sum(1))
        rows_run = by_layer(self.rows_run()[:, 0], self.deep["width"])
        return ForwardCost(queries, keys, torch.zeros_like(queries), rows_run, scored_rows)


class FocusMemory(BufferMemory):
    """Runs the first layer and the projections of the second. ``resume`` then lets the rows that stay attend there, and
    run through the other layers."""

    forward: FocusPass
    layers: AnyStack  # of the network
    second: AnyLayer  # the second of them
    hidden: Tensor  # [b, n, D] what entered it
    fresh: Projected  # its projections
    query: Tensor  # [b, n, H, h] its rotated queries
    stay: Tensor  # [b, n] which rows go on
    first: Tensor  # [b, m] importance of the masks in the first layer

    def __init__(self, session: Session, forward: ForwardPass, call: Call) -> None:
        super().__init__(session, forward, call)
        assert call.columns is not None, "a block is never the whole canvas"
        self.columns, self.whole = call.columns, call
        self.masks, state = select_or_all(self.forward.masks, call.candidates), forward.remembered
        self.target, self.progress = (select_or_all(state[name], call.candidates) for name in ("target", "progress"))

    def through(self, layers: AnyStack, x: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor | None]:
        self.layers = layers
        x, _, columns = layers(x, columns, self, 0, 2)
        return x, columns

    def attend(self, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        if layer:
            return super().attend(layer, fresh, columns)
        query, keys, values, visible = self.exchange(0, fresh, columns)
        self.first = self._importance(fresh, query, keys)
        return fresh.attend(query, keys, values, visible)

    def run(
        self, index: int, layer: AnyLayer, x: Tensor, residual: Tensor | None, angles: Angles, columns: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if index != 1:
            return super().run(index, layer, x, residual, angles, columns)
        self.second, (self.hidden, normal) = layer, layer.entered(x, residual)
        self.fresh = layer.projected(normal, angles)
        self.query, keys, *_ = self.exchange(1, self.fresh, columns)
        self.stay = self._stay(self._importance(self.fresh, self.query, keys))
        return self.hidden, self.hidden

    def _importance(self, fresh: Projected, query: Tensor, keys: Tensor) -> Tensor:
        """Of the masks [b, m], from the queries [b, n, H, h] of a layer and the keys [b, H_kv, S, h] of all columns."""
        masks, columns = (self.copies(tensor, query.device) for tensor in (self.masks, self.columns))
        queries_of_masks = gather_rows(query, torch.searchsorted(columns, masks))
        keys_of_masks = gather_rows(keys.transpose(1, 2), masks).transpose(1, 2)
        scale = query.shape[-1] ** -0.5 if fresh.scale is None else fresh.scale
        real, ranks = masks < self.session.length, self.session.config.ranks
        return importance(queries_of_masks, keys_of_masks, real, scale, ranks)

    def _stay(self, second: Tensor) -> Tensor:
        """Which of the rows [b, n] go on: all decided columns, the masks that were chosen by their importance in both
        layers, and those before that have never run in all layers. Notes what follows for the forward."""
        home, length, masks = self.forward.valid.device, self.session.length, self.masks
        growth, real = second.to(home) - self.first.to(home), masks < length
        stays = chosen_masks(growth, masks, real, self.target)
        queries = select_or_all(self.forward.queries, self.call.candidates)
        last_decided = select_or_all(self.forward.last_decided, self.call.candidates)
        last = torch.maximum(torch.where(stays, masks, -1).amax(1), last_decided)
        stays = stays | real & (masks < last[:, None]) & (masks > self.progress[:, None])
        leave = torch.zeros_like(queries[:, :1]).expand(-1, length + 1).scatter(1, masks, real & ~stays)
        stay = queries & ~leave[:, :length]
        self.note("progress", torch.maximum(self.progress, last))
        self._tell("stay", stay)
        self.last = last
        return gather_padded(stay, self.columns, False)

    def _tell(self, name: str, value: Tensor) -> None:
        """Tell the forward what was found of the call's rows."""
        rows, facts = self.call.candidates, self.forward.deep
        facts[name] = value if rows is None else facts[name].index_copy(0, rows, value)

    def answer(self, facts: Sequence[Sequence[int]], report: Sequence[int] | None = None) -> int:
        """How many columns of the widest row go on."""
        if facts and not any(facts[0]):
            return self.columns.shape[1]
        return int(self.stay.sum(1).amax())

    def rounded(self, answer: int) -> Hashable:
        return bucket(answer, self.columns.shape[1])

    def resume(self, answer: int) -> None:
        home, layer_device, (rows, n) = self.columns.device, self.hidden.device, self.columns.shape
        index = packed(self.stay, torch.arange(n, device=home), answer)
        columns, mask = gather_padded(self.columns, index, self.session.length), self.whole.visible.mask
        assert mask is not None, "attention is by blocks"
        # A row that waits has no last column, and its padding must see something.
        reach = torch.where(self.last < 0, self.session.length, self.last)[:, None, None]
        visible_columns = gather_rows(mask, index) & (torch.arange(mask.shape[2], device=home) <= reach)
        self.call = replace(self.whole, columns=columns, slots=columns, visible=Visible(visible_columns))
        self._tell("width", columns.new_full((rows,), answer))
        index_there = self.copies(index, layer_device)
        attention = self._second(gather_rows(self.query, index_there), layer_device)
        hidden = gather_rows(self.hidden, index_there) + self.second.mixed(attention)
        x, _, columns_there = self.layers(summed(hidden, self.second.fed(hidden)), columns, self, 2, None)
        self.reruns = [Rerun(None, *self.layers.final_rows(x, _, columns_there))]

    def _second(self, query: Tensor, device: torch.device) -> Tensor:
        """What the queries [b, w, H, h] attend to in the second layer [b, w, H * h]."""
        store = self.session.stores[1]
        assert store is not None, "its keys are written"
        rows = self.copies(self.call.buffers, device)
        keys, values = (select_or_all(tensor, rows)[:, :, : self.call.reach] for tensor in store)
        return self.fresh.attend(query, keys, values, self.copies.of(self.call.visible, device))
