"""Open blocks one by one in a model that sees unfinished ones (D2F, arXiv 2508.09192, section 4.3).

The schedule is that of SJTU-DENG-Lab/Discrete-Diffusion-Forcing@880dfd1: D2F-eval/eval_llada.py, eval_dream.py
(_generate_block_single).
"""

from __future__ import annotations

from torch import Tensor

from dllm.common.errors import Set
from dllm.contract import BlockState
from dllm.contract.canvas import Canvas
from dllm.contract.clash import USE_FIXED, Clash
from dllm.contract.shapes import Shapes
from dllm.parts.blocks.ahead import NO_DRAFTS, Ahead
from dllm.parts.blocks.fixed import Fixed


class Pipelined(Ahead):
    """As ``Ahead``, for a model whose attention goes by blocks also over unfinished ones. The blocks are those of the
    attention, and one alone is open in the first turn.

    What is not open yet is neither computed nor seen. ``sampler=d2f`` makes each block commit whose predecessor is far
    enough; ``eos=stop_opening`` opens none after an end of text.
    """

    traits = Ahead.traits
    clashes = (
        Clash(
            lambda c: not c.attention.pipelined,
            "{blocks} is for models that see unfinished blocks, and this one is {kind:value}.",
            [lambda c: Set("blocks", "ahead" if c.attention.block is None else "fixed")],
            "For LLaDA or Dream with D2F's adapter set {model.attention_block:name} to its block length.",
        ),
        Clash(
            lambda c: c.part.block_length != c.attention.block and {"model.attention_block": c.attention.block},
            "{blocks.block_length}, but the model attends by blocks of {model.attention_block} columns.",
            [lambda c: Set("blocks.block_length", c.attention.block)],
        ),
        Clash(
            lambda c: c.does.revocable or c.does.edits,
            "{blocks} opens blocks by what is decided, and {sampler} may take that back.",
            [Set("sampler", "d2f"), USE_FIXED],
        ),
        NO_DRAFTS,
    )

    def start(self, canvas: Canvas, lookahead: int = 0, shapes: Shapes = Shapes()) -> BlockState:  # noqa: B008  frozen
        return Fixed.start(self, canvas, lookahead, shapes)

    def _far_enough(self, masks: Tensor, length: Tensor) -> Tensor:
        """The published quotient in float64: in float32, 15 of 50 columns are less than a share of 0.3."""
        return (length - masks).double() / length >= self.opening_share
