"""Never compute a finished block again: the exact cache of block-causal models (SDAR, LLaDA2)."""

from __future__ import annotations

import torch

from dllm.cache.buffer import Buffered, CacheView
from dllm.canvas import Canvas
from dllm.contract import ForwardPlan, State


class Finished(Buffered):
    """A position sees its own attention block and those before it. So a block's rows are final once it and all blocks
    before it are decided and have been computed in that state. Nothing behind the open blocks need be computed. The
    open blocks are computed whole, committed positions included. It gives the same tokens as cache=none.
    """

    block_causal = True
    full = shadows = False

    def state(self, canvas: Canvas) -> State:
        """exact [B, L]: columns computed when their block and all before it were decided."""
        return {"exact": canvas.nothing}

    def plan(self, view: CacheView) -> ForwardPlan:
        canvas, block = view.canvas, view.config.attention_block
        assert block is not None, "a model with full attention was not refused"
        number = torch.where(canvas.valid, canvas.positions // block, -1)
        masked = torch.where(canvas.masked & canvas.valid, number, number.amax(1, keepdim=True) + 1)
        final = number < masked.amin(1, keepdim=True)
        last = torch.where(canvas.columns < view.blocks.open_end[:, None], number, -1).amax(1, keepdim=True)
        live = (~(view.state["exact"] & final) & (number <= last)) | view.blocks.in_open
        exact = final & (view.state["exact"] | live)
        return view.plan(live, keys=canvas.valid & (live | exact), state={"exact": exact})
