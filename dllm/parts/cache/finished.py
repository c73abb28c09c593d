"""Never compute again what is final: the exact cache of models that are causal by blocks or by tokens."""

from __future__ import annotations

import torch

from dllm.contract import ForwardPlan, State
from dllm.contract.canvas import Canvas
from dllm.contract.clash import Mismatch
from dllm.models.network.visibility import CAUSAL
from dllm.parts.cache.buffer import Buffered, CacheView
from dllm.parts.cache.columns import committable_next, order_of, predictors


class Finished(Buffered):
    """The model's attention says which pieces of a row become final as they are decided, in their order: its attention
    blocks (SDAR, LLaDA2, NBDiff, ...), or single columns (WeDLM). Rows that have been computed when they were final are
    never computed again, unless a rule has replaced a token since. A forward computes the rows that predict what may be
    committed now, and all that these see and that is not final yet. It gives the same tokens as cache=none.
    """

    traits = Buffered.traits.but(
        kinds=CAUSAL,
        committed=True,
        branches=True,
        shadows=False,
        bounded_shapes=True,
        exact=True,
        soft=True,
        shares=True,
    )
    clashes = (
        *Buffered.clashes,
        Mismatch(
            lambda c: (c.model.prediction_shift or c.model.seed_shift) and any(need.committed for need in c.needs),
            "{cache} does not compute again what predicts a block's first position, and a chosen part reads the "
            "scores of committed ones.",
        ),
    )

    def state(self, canvas: Canvas) -> State:
        """exact [B, L]: columns computed when their piece and all before it were decided. tokens [B, L]: those of the
        last forward."""
        return {"exact": canvas.no_positions, "tokens": canvas.tokens}

    def plan(self, view: CacheView) -> ForwardPlan:
        canvas, config = view.canvas, view.config
        order, masked = order_of(canvas, config), canvas.masked & canvas.valid
        assert order is not None, "a model with full attention was not refused"
        piece = config.attention.pieces(masked, canvas.start)
        final = piece < torch.where(masked, piece, len(canvas.columns) + 1).amin(1, keepdim=True)
        if view.soft:  # an open block's rows come of mixtures: they are computed once more, whatever changed
            final = final & (canvas.columns < view.blocks.begin[:, None])
        # A token that was replaced since makes stale whatever has seen it: its piece, and those after.
        changed = (canvas.tokens != view.state["tokens"]) & canvas.valid
        stale = piece >= torch.where(changed, piece, len(canvas.columns) + 1).amin(1, keepdim=True)
        exact = view.state["exact"] & final & ~stale
        committable, forced = committable_next(canvas, config)
        needed_rows = predictors(committable & view.blocks.in_open, canvas, config)
        furthest = torch.where(needed_rows, order.reach, -1).amax(1, keepdim=True)
        live = needed_rows | (~exact & (order.rank <= furthest))
        exact = exact | (final & live)
        return view.plan(
            live,
            committable=committable,
            forced=forced,
            keys=canvas.valid & (live | exact),
            state={"exact": exact, "tokens": canvas.tokens},
        )
