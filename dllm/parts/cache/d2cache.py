"""Compute the masks that will soon be decided, and the rows that attention draws most from (d2Cache, arXiv
2509.23094)."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.density import certainty_density
from dllm.common.errors import in_range
from dllm.common.ranking import argmax_mask, rank, top_k_mask
from dllm.common.rowwise import select_or_all
from dllm.contract import BlockState, ForwardPlan, Need, Scores, State
from dllm.contract.canvas import Canvas
from dllm.models.network.memory import Memory, Projected
from dllm.parts.cache.base import Session
from dllm.parts.cache.buffer import Buffered, CacheView, ColumnSession
from dllm.parts.cache.buffer_memory import BufferMemory
from dllm.parts.cache.columns import predictors
from dllm.parts.cache.drift import attention_and_weights
from dllm.parts.cache.passes import Call, ForwardPass


class D2Cache(Buffered):
    """The first forward is full. Each later one computes the ``masks`` masks with the highest product of confidence and
    certainty density (the share of their surroundings that is known, by a Gaussian of ``sigma`` columns), those of the
    last block first; what was just committed; and of all other columns those from which the whole network, over its
    layers, draws the share ``rollout`` (attention rollout). Nothing refreshes at the borders of blocks.

    inflate: columns between two such columns are computed too, if these are at most this far apart.
    """

    traits = Buffered.traits.but(
        shadows=False, bounded_shapes=True, acts_in_layers=True, reads_weights=True, heads="summed"
    )

    def __init__(self, masks: int = 32, rollout: float = 0.1, sigma: float = 10.0, inflate: int = 0) -> None:
        in_range("cache.masks", masks, 1, advice="It counts columns.")
        in_range("cache.rollout", rollout, 0.0, 1.0)
        in_range("cache.sigma", sigma, 0.1, advice="It counts columns.")
        in_range("cache.inflate", inflate, 0, advice="It counts columns; 0 is off.")
        self.masks, self.rollout, self.sigma, self.inflate = masks, rollout, sigma, inflate

    def memory(self, session: ColumnSession, forward: ForwardPass, call: Call) -> Memory:
        return D2CacheMemory(session, forward, call)

    def needs(self) -> tuple[Need, ...]:
        return (Need("answer"),)

    def state(self, canvas: Canvas) -> State:
        """confidence [B, L]: what the last forward that scored a mask said of it. importance [B, L]: how much the last
        forward drew from each column. priority [B, L]: the block of that forward."""
        nothing = torch.zeros_like(canvas.masked, dtype=torch.float64)
        return {"confidence": nothing, "importance": nothing, "priority": canvas.no_positions}

    def after_scores(self, state: State, scores: Scores) -> State:
        fresh = scores.scored & state["masks"]
        return {"confidence": torch.where(fresh, scores.confidence.double(), state["confidence"])}

    def plan(self, view: CacheView) -> ForwardPlan:
        canvas, blocks, config = view.canvas, view.blocks, view.config
        masks_next = self.soon(view)
        new = view.masks & ~canvas.masked & canvas.valid
        # The row before the answer of a shifted model is computed if it predicts a chosen mask, and else never.
        apart = (config.prediction_shift > 0) & (canvas.columns == canvas.start[:, None] - 1)
        soon = predictors(masks_next, canvas, config)
        rows = soon & ~apart | new
        columns = rows | self.important(view.state["importance"], canvas.valid & ~rows)
        columns = torch.where(apart, soon, columns)
        columns = (blocks.turn == 0)[:, None] | with_gaps(columns, canvas.columns, self.inflate)
        return view.plan(columns, state={"priority": self.priority_columns(canvas, blocks)})

    def priority_columns(self, canvas: Canvas, blocks: BlockState) -> Tensor:
        """The columns [B, L] of the block, whose masks come first when this forward's successor is planned."""
        return blocks.in_block

    def soon(self, view: CacheView) -> Tensor:
        """The masks [B, L] that will soon be decided; at least one of those that the coming forward may commit."""
        canvas, state, masks = view.canvas, view.state, view.canvas.undecided & view.canvas.valid
        density = certainty_density(~canvas.masked, canvas.start, canvas.initial_end, self.sigma)
        score, inside = state["confidence"] * density, state["priority"]
        score = score + inside * score.amax(1, keepdim=True)
        begin, width = inside.long().argmax(1, keepdim=True), inside.sum(1, keepdim=True).clamp(min=1)
        last = torch.where(masks & (masks.cumsum(1) == self.masks), canvas.columns, -1).amax(1, keepdim=True)
        start = canvas.start[:, None]
        last = torch.where(last < 0, canvas.initial_end[:, None] - 1, last) - start
        far = start + (last // width + 1) * width
        near = masks & (canvas.columns >= begin) & (canvas.columns < far)
        best = top_k_mask(score, near, torch.full_like(canvas.start, self.masks))
        open_ = masks & view.blocks.in_open
        lacks = ~(best & open_).any(1, keepdim=True)
        return best | argmax_mask(-canvas.columns.double().expand_as(score), open_) & lacks

    def important(self, importance: Tensor, among: Tensor) -> Tensor:
        """The columns of ``among`` [B, L] with the highest importance whose shares add up to ``rollout`` at most, and
        at least one."""
        importances = torch.where(among, importance, 0.0)
        share = importances / (importances.sum(1, keepdim=True) + 1e-9)
        shares_in_order, place = rank(share, among)
        within = (shares_in_order.clamp(min=0).cumsum(1) <= self.rollout).sum(1, keepdim=True).clamp(min=1)
        return among & (place < within)


def with_gaps(columns_chosen: Tensor, columns: Tensor, most: int) -> Tensor:
    """``columns_chosen`` [B, L], and the columns between two neighbours of them that are at most ``most`` columns
    apart."""
    if not most:
        return columns_chosen
    far = len(columns) + most
    before = torch.where(columns_chosen, columns, -far).cummax(1).values
    behind = torch.where(columns_chosen, columns, 2 * far).flip(1).cummin(1).values.flip(1)
    return columns_chosen | (behind - before <= most)


class D2CacheMemory(BufferMemory):
    """Attends with all weights at hand, and adds up after the last layer what each column gave."""

    def __init__(self, session: Session, forward: ForwardPass, call: Call) -> None:
        super().__init__(session, forward, call)
        self.weights: list[Tensor] = []

    def attend(self, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        query, keys, values, visible = self.exchange(layer, fresh, columns)
        self.show(layer, query, keys, visible, columns)
        read_queries = query if query.dtype.itemsize <= 2 or fresh.tiled else None
        out, weights = attention_and_weights(query, keys, values, visible, read_queries, fresh.tiled)
        self.weights.append(weights.mean(1))
        if len(self.weights) == self.session.config.layers:
            valid = select_or_all(self.forward.valid, self.call.candidates)
            means = self.session.config.ranks.means(self.weights)
            self.note("importance", attention_rollout(means, self.call.columns, valid))
        return out


def attention_rollout(weights: list[Tensor], columns: Tensor | None, valid: Tensor) -> Tensor:
    """How much of all rows' last states came from each column [B, L]: the column sums of the product, over the layers,
    of (A + I) / its row sums, where A are the attention weights of the rows that were computed, and I of the others.

    weights [B, n, S] of each layer, of ``columns`` [B, n] (L: padding; None: all in order). valid [B, L]. The result is
    float64, since columns are ranked by it.
    """
    total = torch.cat([valid, torch.zeros_like(valid[:, :1])], 1).double()
    if columns is None:
        columns = torch.arange(valid.shape[1], device=valid.device).expand_as(valid)
    for layer in reversed(weights):
        total = total.to(layer.device)
        at = columns.to(layer.device)
        mine = total.gather(1, at) / (layer.sum(2, dtype=torch.float64) + 1)
        total = total.scatter(1, at, mine)  # the row's own part
        total[:, : layer.shape[2]] += torch.einsum("bn,bns->bs", mine, layer.double())
        total[:, -1] = 0
    return total[:, :-1].to(valid.device)
