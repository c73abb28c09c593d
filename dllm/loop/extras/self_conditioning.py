"""What the forward of a row hands to the next one of its block: the embeddings that it expected (self-conditioning).

It is kept by the columns of the block. Nothing is handed on to another block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm.common.rowwise import select_or_all
from dllm.contract import BlockState, State
from dllm.contract.canvas import Canvas
from dllm.contract.readouts import HeadInput
from dllm.loop.extras.base import Extra, ScoredCandidates, Work
from dllm.loop.hidden import HiddenStates
from dllm.loop.proposals import temper
from dllm.loop.rows import Rows
from dllm.models.network.conditioning import Conditioning
from dllm.models.network.packed_calls import Inputs
from dllm.models.network.transformer import Transformer
from dllm.parts.cache.passes import Call, ForwardPass


@dataclass(frozen=True)
class CarriedEmbeddings(Extra):
    """A network of two passes is given, at each position of the block, the embedding that its last forward expected
    there."""

    model: Transformer  # that network

    stores_logits = True

    def carried(self, canvas: Canvas) -> State:
        """soft [B, C, D]: nothing yet."""
        block, model = self.model.config.attention.block, self.model
        assert block is not None, "what is carried is kept by block"
        shape = len(canvas.row_id), block, model.config.width
        return {"soft": torch.zeros(shape, dtype=model.dtype, device=canvas.start.device)}

    def at_call(self, work: Work, forward: ForwardPass, call: Call, inputs: Inputs) -> Inputs:
        return replace(inputs, conditioning=conditioning(self.model, work.canvas, call, work.rows))

    def finish(self, work: Work, hidden: HiddenStates, source: HeadInput, result: ScoredCandidates) -> ScoredCandidates:
        blocks, carried = work.blocks, work.rows.carried["soft"]
        assert source.logits is not None, "stored for this extra"
        soft = by_block(
            expected_embeddings(self.model, source.logits, work.canvas.temperature), source.columns, blocks, carried
        )
        return replace(result, carried={"soft": blocks.shapes.update(blocks.active, soft, carried)})


def conditioning(model: Transformer, canvas: Canvas, call: Call, rows: Rows) -> Conditioning:
    """Which queries [b, n] of a call are denoised, and what the last forward of their block expected there."""
    assert rows.owner.is_single, "a rule that renoises has one candidate"
    denoised = model.config.attention.denoised(canvas.masked & canvas.valid, canvas.start)
    assert denoised is not None, "a network that carries something has two passes"
    carried = rows.carried["soft"] * (rows.blocks.forwards > 0)[:, None, None]
    soft, denoised = at_queries(carried, rows.blocks, canvas, call), select_or_all(denoised, call.candidates)
    if call.columns is not None:
        length = denoised.shape[1]
        denoised = denoised.gather(1, call.columns.clamp(max=length - 1)) & (call.columns < length)
    return Conditioning(denoised, soft)


def at_queries(values: Tensor, blocks: BlockState, canvas: Canvas, call: Call) -> Tensor:
    """Values [B, C, ...] by the columns of the open block, at the queries [b, n, ...] of a call; False for booleans
    outside the block, where other values are some column's."""
    begin, values = select_or_all((blocks.begin, values), call.candidates)
    columns = canvas.columns.expand(len(begin), -1) if call.columns is None else call.columns
    place = columns - begin[:, None]
    inside, size = place.clamp(0, values.shape[1] - 1), values.shape[1]
    if values.dim() > 2:
        return values.gather(1, inside[..., None].expand(-1, -1, values.shape[2]))
    return values.gather(1, inside) & (place >= 0) & (place < size)


def expected_embeddings(model: Transformer, logits: Tensor, temperature: Tensor) -> Tensor:
    """The embeddings [N, r, D] that are expected under logits [N, r, V] at the ``temperature`` [N] of this turn. Row by
    row: all tempered logits at once would double the memory."""
    return torch.stack([model.soft(temper(row, heat)) for row, heat in zip(logits, temperature, strict=True)])


def by_block(values: Tensor, columns: Tensor, blocks: BlockState, like: Tensor) -> Tensor:
    """Values [N, r, D] of ``columns`` [N, r] (L: padding) by the columns of their block [N, C, D], as ``like``; 0
    elsewhere."""
    size = like.shape[1]
    place = (columns - blocks.begin[:, None]).clamp(max=size)  # padding goes after the block
    wide = like.new_zeros(len(like), size + 1, like.shape[2])
    return wide.scatter(1, place[..., None].expand_as(values), values.to(like.dtype))[:, :-1]
