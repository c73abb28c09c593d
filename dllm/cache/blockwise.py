"""What Fast-dLLM's two caches share: a full forward when a block opens, then forwards over a part of the canvas."""

from __future__ import annotations

from torch import Tensor

from dllm.cache.buffer import Buffered
from dllm.canvas import Canvas
from dllm.contract import BlockState, ForwardPlan, Rule
from dllm.errors import Unfit
from dllm.models.config import ModelConfig
from dllm.setting import Setting
from dllm.shapes import Bounded


def refuse_undoing(query_left: bool, setting: Setting, sampler: Rule) -> None:
    """Raise Unfit if the sampler may remask a position that no later forward of the block predicts."""
    if sampler.revocable and setting.model.prediction_shift and not query_left:
        raise Unfit(
            "cache.query_left=false predicts a block's first position only once, so a sampler that remasks it would "
            "wait for it forever. Use cache.query_left=true."
        )


class Blockwise(Buffered):
    """A subclass chooses the columns of a reuse forward, in ``part``.

    query_left matters for models that predict from the position before (Dream). With it a reuse forward starts one
    column earlier, and so predicts every position of the block. Without it (the published code) it does not predict the
    block's first position; the full forward commits exactly that one.
    """

    def __init__(self, canvas: Canvas, config: ModelConfig, query_left: bool, shrinks: bool) -> None:
        super().__init__(canvas, config, even=not shrinks and bool(canvas.valid.all()))
        self.query_left = query_left and config.prediction_shift > 0

    def part(self, canvas: Canvas, blocks: BlockState, begin: Tensor) -> Tensor:
        """Columns [B, L] of a reuse forward that starts at column ``begin`` [B, 1]."""
        raise NotImplementedError

    def widest(self, known: Bounded) -> int:
        """The most columns that ``part`` can have in any row, without the one that ``query_left`` adds."""
        raise NotImplementedError

    def queries(self, canvas: Canvas, blocks: BlockState, announced: Tensor) -> ForwardPlan:
        build = (blocks.forwards == 0)[:, None]
        begin = blocks.begin[:, None] - (1 if self.query_left else 0)
        columns, bounds = build | self.part(canvas, blocks, begin), blocks.shapes.bounds(self.bounds)
        if self.config.prediction_shift == 0 or self.query_left:
            return ForwardPlan.of(canvas, blocks.shapes, columns, bounds=bounds)
        open_ = canvas.undecided & blocks.in_block
        first = open_ & (open_.cumsum(1) == 1) & build
        return ForwardPlan.of(canvas, blocks.shapes, columns, forced=first, bounds=bounds)

    def bounds(self, known: Bounded) -> tuple[int, ...]:
        """The most columns of each row: the whole canvas where a block opens, else the most of ``part``."""
        reuse = min(self.length, self.widest(known) + self.query_left)
        return tuple(self.length if opening else reuse for opening in known.opening)
