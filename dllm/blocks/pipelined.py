"""Open blocks one by one in a model that sees unfinished ones (D2F, arXiv 2508.09192, section 4.3).

The schedule is that of SJTU-DENG-Lab/Discrete-Diffusion-Forcing@880dfd1: D2F-eval/eval_llada.py, eval_dream.py
(_generate_block_single).
"""

from __future__ import annotations

from torch import Tensor

from dllm.blocks.ahead import Ahead
from dllm.blocks.fixed import Fixed
from dllm.contract import BlockState
from dllm.contract.canvas import Canvas
from dllm.contract.setting import Setting
from dllm.contract.shapes import Shapes
from dllm.contract.traits import Rule
from dllm.errors import UserError, name_of


class Pipelined(Ahead):
    """As ``Ahead``, for a model whose attention goes by blocks also over unfinished ones. The blocks are those of the
    attention, and one alone is open in the first turn.

    What is not open yet is neither computed nor seen. ``sampler=d2f`` makes each block commit whose predecessor is far
    enough; ``eos=stop_opening`` opens none after an end of text.
    """

    traits = Ahead.traits

    def check(self, setting: Setting, sampler: Rule) -> None:
        kind, own = setting.model.attention, self.block_length
        if not kind.pipelined:
            raise UserError(
                f"blocks={name_of(self)} is for models that see unfinished blocks, and this one is {kind.is_called}. "
                f"For LLaDA or Dream with D2F's adapter set model.attention_block={own}; for others use "
                f"blocks={'ahead' if kind.block is None else 'fixed'}."
            )
        if own != kind.block:
            raise UserError(
                f"blocks.block_length={own}, but the model attends by blocks of model.attention_block={kind.block} "
                "columns. Give both the same number."
            )
        if sampler.traits.revocable or sampler.traits.edits:
            raise UserError(
                f"blocks={name_of(self)} opens blocks by what is decided, and sampler={name_of(sampler)} may take that "
                "back. Use sampler=d2f, or blocks=fixed."
            )
        self.check_rule(sampler)

    def start(self, canvas: Canvas, lookahead: int = 0, shapes: Shapes = Shapes()) -> BlockState:  # noqa: B008  frozen
        return Fixed.start(self, canvas, lookahead, shapes)

    def _far_enough(self, left: Tensor, length: Tensor) -> Tensor:
        """The published quotient in float64: in float32, 15 of 50 columns are less than a share of 0.3."""
        return (length - left).double() / length >= self.opening_share
