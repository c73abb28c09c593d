"""Commit what is confident in every open block, and something in each whose predecessor is far enough (D2F, arXiv
2508.09192).

The rule is that of SJTU-DENG-Lab/Discrete-Diffusion-Forcing@880dfd1: D2F-eval/eval_llada.py, eval_dream.py
(_generate_block_single, sample_tokens).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.errors import Set, in_choices, in_range
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import PerRequest
from dllm.contract.clash import UNGUIDED, USE_CONFIDENCE, Clash
from dllm.contract.traits import SamplerTraits
from dllm.parts.samplers.base import Sampler, ranking, ranking_statistics


class D2F(Sampler):
    """Commit each open position whose confidence exceeds ``threshold``. A block in which none does commits its best
    position by ``score`` (``low_confidence``, ``margin``, ``entropy``) if ``sure_share`` of the block before it was
    decided when the forward began; the first block that is not full always does.

    So a turn may force as many commits as blocks are open, where ``D3LLM`` forces one in the first block. In one block
    at a time that is ``Confidence`` with a strict threshold.
    """

    traits = SamplerTraits(
        stateless=True, deterministic=True, by_confidence=False, ranks_by="confidence", tempered=True, beyond_block=True
    )
    per_request = ("threshold", "sure_share")
    clashes = (
        Clash(
            lambda c: not c.attention.pipelined,
            "{sampler} is for models that see unfinished blocks, and this one is {kind:value}.",
            [Set("sampler", "d3llm")],
            "For LLaDA or Dream with D2F's adapter set {model.attention_block:name} to its block length, 32.",
        ),
        Clash(
            lambda c: "block_length" not in c.blocks.per_request or c.blocks.traits.slides,
            "{sampler} reads the shares of blocks of one length, and {blocks} has others.",
            [lambda c: Set("blocks", "pipelined") & Set("blocks.block_length", c.attention.block)],
        ),
        Clash(
            lambda c: c.sampling.guidance,
            "{sampling.guidance} with {sampler} was never measured: its threshold is one of unguided confidences.",
            [UNGUIDED, USE_CONFIDENCE],
        ),
    )

    def __init__(
        self, threshold: PerRequest = 0.9, sure_share: PerRequest = 0.95, score: str = "low_confidence"
    ) -> None:
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        in_range("sampler.sure_share", sure_share, 0.0, 1.0)
        in_choices("sampler.score", score, ("low_confidence", "margin", "entropy"))
        self.threshold, self.sure_share, self.score = threshold, sure_share, score
        if score != "low_confidence":  # the threshold is on the confidence all the same
            self.traits = self.traits.but(ranks_by="")

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=ranking_statistics(self.score)),)

    def step(self, view: View, state: State) -> Step:
        accepted = view.open & (view.scores.confidence > state["threshold"][:, None])
        block = block_numbers(view)
        waits = view.open & sure(view, block, state["sure_share"]) & ~at_most(accepted.long(), block).bool()
        rank = ranking(view.scores, self.score).masked_fill(~waits, -torch.inf)
        best = waits & (rank == at_most(rank, block))
        columns = view.canvas.columns.expand_as(block)
        first = -columns.masked_fill(~best, len(view.canvas.columns))  # of equal ones, the first
        return view.step(accepted | (best & (first == at_most(first, block))), accepted=accepted)


def block_numbers(view: View) -> Tensor:
    """The block [B, L] that holds each column, from 0 for the first that is not full; what is before counts to it."""
    blocks = view.blocks
    number = (view.canvas.columns - blocks.begin[:, None]) // blocks.params["block_length"][:, None]
    return number.clamp(min=0)


def at_most(values: Tensor, block: Tensor) -> Tensor:
    """The largest of the ``values`` [B, L] of each column's block [B, L]."""
    return torch.zeros_like(values).scatter_reduce(1, block, values, "amax", include_self=False).gather(1, block)


def sure(view: View, block: Tensor, least: Tensor) -> Tensor:
    """Columns [B, L] of blocks before which at least the share ``least`` [B] of a block is decided."""
    open_ = view.blocks.in_open
    undecided, length = (
        torch.zeros_like(block).scatter_add(1, block, where.long()) for where in (view.canvas.undecided & open_, open_)
    )
    far = (length - undecided).double() / length >= least[:, None]
    return torch.cat([torch.ones_like(far[:, :1]), far[:, :-1]], 1).gather(1, block)
