"""The exact cache of block-causal models (SDAR, LLaDA2): blocks that are finished are never computed again."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.blocks.base import Span
from dllm.cache.base import Cache, Call, Plan, Session
from dllm.cache.buffer import Buffered
from dllm.canvas import Canvas, of
from dllm.models.config import ModelConfig
from dllm.models.transformer import block_causal


class Finished(Cache):
    """A position sees its own attention block and those before it. So the rows of a block stay right once it and all
    before it are decided and have been computed in that state, and nothing behind the open blocks need be computed.
    The open blocks are computed whole, committed positions too. The same tokens as cache=none.
    """

    block_causal = True
    full = shadows = False

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return FinishedBlocks(canvas, config)


class FinishedBlocks(Buffered):
    """exact [B, L]: rows computed when their block and all before it were decided."""

    state = (*Buffered.state, "exact")

    def __init__(self, canvas: Canvas, config: ModelConfig) -> None:
        super().__init__(canvas, config)
        assert config.attention_block is not None
        self.block, self.exact = config.attention_block, torch.zeros_like(canvas.masked)

    def queries(self, canvas: Canvas, span: Span, upcoming: Tensor | None) -> Plan:
        number = torch.where(canvas.valid, canvas.positions // self.block, -1)
        masked = torch.where(canvas.masked & canvas.valid, number, number.amax(1, keepdim=True) + 1)
        final = number < masked.amin(1, keepdim=True)
        last = torch.where(canvas.columns < span.reach[:, None], number, -1).amax(1, keepdim=True)
        live = (~(self.exact & final) & (number <= last)) | span.inside
        self.exact = final & (self.exact | live)
        return Plan(live & canvas.valid)

    def keep_attended(self, plan: Plan, candidates: Canvas, owner: Tensor | None) -> Tensor:
        assert plan.columns is not None
        return candidates.valid & (plan.columns | self.exact)

    def visible(self, call: Call, keys: Tensor, candidates: Canvas) -> Tensor | None:
        assert call.columns is not None
        positions = of(candidates.positions, call.rows)
        places = positions.gather(1, call.columns.clamp(max=self.length - 1))
        return block_causal(places, positions[:, : call.reach], self.block, keys[:, : call.reach])
