"""Positions of the open block show a mixture of tokens and the mask, as the rule said after the last forward.

It is kept by the columns of the block: tokens and weights, not embeddings. Nothing is handed on to another block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm.contract import State
from dllm.contract.canvas import Canvas
from dllm.contract.traits import Soft
from dllm.loop.extras.base import Extra, Work
from dllm.loop.extras.self_conditioning import at_queries
from dllm.models.network.conditioning import Conditioning
from dllm.models.network.experts import at_least_float32
from dllm.models.network.packed_calls import Inputs
from dllm.models.network.transformer import Transformer
from dllm.parts.blocks.base import Blocks
from dllm.parts.cache.base import Session
from dllm.parts.cache.passes import Call, ForwardPass

MIXED_AT_ONCE = 64  # mixtures at a time: of 50 tokens of 4,096 numbers in float32 they take 52 MB


@dataclass(frozen=True)
class MixedInputs(Extra):
    """Every forward is given the embeddings of the mixtures that its rows carry."""

    model: Transformer  # whose embeddings are mixed
    soft: Soft  # which mixtures the rule makes
    blocks: Blocks  # whose widest block says how many columns rows carry
    mask_id: int  # what the weights leave is this token's
    embeddings: Tensor | None = None  # [B, C, D] the mixtures of this forward (None: it has not begun)

    def session(self, session: Session) -> Session:
        session.soft = True
        return session

    def carried(self, canvas: Canvas) -> State:
        """No mixture yet."""
        shape = (len(canvas.start), self.blocks.widest(len(canvas.columns)), self.soft.tokens)
        tokens, where = canvas.tokens.new_zeros(shape), canvas.masked.new_zeros(shape[:2])
        return {"where": where, "tokens": tokens, "weights": torch.zeros_like(tokens).double()}

    def start(self, work: Work) -> MixedInputs:
        wide = torch.float64 if self.soft.restores_norm else at_least_float32(self.model.dtype)
        tokens, weights = work.rows.carried["tokens"], work.rows.carried["weights"].to(wide)
        mixtures = mixed_embeddings(
            self.model.embed, tokens.flatten(0, 1), weights.flatten(0, 1), self.mask_id, self.soft
        )
        return replace(self, embeddings=mixtures.view(*tokens.shape[:2], -1))

    def at_call(self, work: Work, forward: ForwardPass, call: Call, inputs: Inputs) -> Inputs:
        assert work.rows.owner.is_single and self.embeddings is not None, "a soft rule has one candidate"
        shows = work.rows.carried["where"], self.embeddings
        where, soft = (at_queries(value, work.blocks, work.canvas, call) for value in shows)
        return replace(inputs, conditioning=Conditioning(where, soft))


def mixed_embeddings(
    embed: Callable[[Tensor], Tensor], tokens: Tensor, weights: Tensor, mask_id: int, soft: Soft
) -> Tensor:
    """The embeddings [R, D] of mixtures of ``tokens`` [R, k] with these ``weights`` [R, k], in whose precision they
    are added up.

    u = sum_j w_j W_j + (1 - sum_j w_j) W_mask. With its norm restored it is u g / (|u| + 1e-6), where g is the mean of
    the norms |W| with the same weights (DMax, arXiv 2604.08302).
    """
    mask_share = (1 - weights.sum(-1, keepdim=True)).clamp(min=0)
    ids, shares = torch.cat([tokens, torch.full_like(tokens[:, :1], mask_id)], 1), torch.cat([weights, mask_share], 1)
    out = list[Tensor]()
    for some, share in zip(ids.split(MIXED_AT_ONCE), shares.split(MIXED_AT_ONCE), strict=True):
        rows = embed(some)
        wide = rows.to(share.dtype)
        sums = (share[:, None] @ wide)[:, 0]
        if soft.restores_norm:
            goal = (share * wide.norm(dim=-1)).sum(-1, keepdim=True)
            sums = sums * goal / (sums.norm(dim=-1, keepdim=True) + 1e-6)
        out.append(sums.to(rows.dtype))
    return torch.cat(out)
