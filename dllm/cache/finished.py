"""Never compute a finished block again: the exact cache of block-causal models (SDAR, LLaDA2)."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.cache.base import Cache, Session
from dllm.cache.buffer import Buffered
from dllm.cache.passes import Call
from dllm.canvas import Canvas
from dllm.common.rowwise import Owner, some
from dllm.contract import BlockState, ForwardPlan
from dllm.models.config import ModelConfig
from dllm.models.memory import AttentionOrder


class Finished(Cache):
    """A position sees its own attention block and those before it. So a block's rows are final once it and all blocks
    before it are decided and have been computed in that state. Nothing behind the open blocks need be computed. The
    open blocks are computed whole, committed positions included. It gives the same tokens as cache=none.
    """

    block_causal = True
    full = shadows = False

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return FinishedBlocks(canvas, config)


class FinishedBlocks(Buffered):
    """exact [B, L]: columns computed when their block and all before it were decided."""

    state = (*Buffered.state, "exact")

    def __init__(self, canvas: Canvas, config: ModelConfig) -> None:
        super().__init__(canvas, config)
        assert config.attention_block is not None
        self.block, self.exact = config.attention_block, torch.zeros_like(canvas.masked)

    def queries(self, canvas: Canvas, blocks: BlockState, announced: Tensor) -> ForwardPlan:
        number = torch.where(canvas.valid, canvas.positions // self.block, -1)
        masked = torch.where(canvas.masked & canvas.valid, number, number.amax(1, keepdim=True) + 1)
        final = number < masked.amin(1, keepdim=True)
        last = torch.where(canvas.columns < blocks.open_end[:, None], number, -1).amax(1, keepdim=True)
        live = (~(self.exact & final) & (number <= last)) | blocks.in_open
        self.exact = final & (self.exact | live)
        return ForwardPlan.of(canvas, blocks.shapes, live & canvas.valid)

    def keys(self, plan: ForwardPlan, candidates: Canvas, owner: Owner) -> Tensor:
        return candidates.valid & (plan.columns | self.exact)

    def visible(self, call: Call, keys: Tensor, candidates: Canvas) -> Tensor | None:
        order = AttentionOrder.of(self.config, some(candidates.positions, call.candidates))
        assert order is not None, "a model with full attention was not refused"
        return order.visible(order if call.columns is None else order.at(call.columns), keys[:, : call.reach])
