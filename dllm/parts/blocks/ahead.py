"""Open the next block before the last one is full (d3LLM, arXiv 2601.07568).

The schedule is that of hao-ai-lab/d3LLM@e5bfcac: d3llm/d3llm_LLaDA/d3llm_llada_generate_util.py (generate_multi_block).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from dllm.common.errors import Set, in_range
from dllm.common.rowwise import Owner
from dllm.contract import BlockState
from dllm.contract.canvas import Canvas
from dllm.contract.clash import USE_FIXED, Clash
from dllm.contract.shapes import Shapes
from dllm.parts.blocks.fixed import Fixed

NO_DRAFTS = Clash(
    lambda c: c.does.branches or c.does.lookahead,
    "{blocks} opens blocks by what is decided, but {sampler} drafts in blocks of its own choice.",
    [USE_FIXED],
)


class Ahead(Fixed):
    """Several blocks of ``block_length`` columns are open at once. After every turn one more opens if at least
    ``opening_share`` of the last open one is decided. The current block is the first that is not full.

    opening_share 1 is one block after the other; 0 opens a block in every turn. d3LLM's second share, from which a
    block may be made to commit (``decoded_token_threshold``), changes nothing in its rule: the first block that is not
    full always may, since all before it are decided. In D2F's it does (``samplers/d2f.py``).
    """

    traits = Fixed.traits.but(one_at_a_time=False)
    clashes: ClassVar[tuple[Clash, ...]] = (
        Clash(
            lambda c: c.attention.pipelined,
            "{blocks} was published for models with full attention, and this one is {kind:value}.",
            [lambda c: Set("blocks", "pipelined") & Set("blocks.block_length", c.attention.block)],
        ),
        Clash(
            lambda c: c.attention.block is not None,
            "{blocks} decodes several blocks at once, but a {attention.name:value} model was trained to see only "
            "finished ones.",
            [USE_FIXED],
        ),
        NO_DRAFTS,
    )

    def __init__(self, block_length: int = 32, opening_share: float = 0.1, min_forwards: int = 1) -> None:
        super().__init__(block_length, min_forwards)
        in_range("blocks.opening_share", opening_share, 0.0, 1.0)
        self.opening_share = opening_share

    def widest(self, length: int) -> int:
        return length

    def start(self, canvas: Canvas, lookahead: int = 0, shapes: Shapes = Shapes()) -> BlockState:  # noqa: B008  frozen
        return self._opened(canvas, super().start(canvas, lookahead, shapes))

    def advance(
        self, candidates: Canvas, blocks: BlockState, owner: Owner, full: Tensor, stopped: Tensor
    ) -> BlockState:
        canvas = owner.per_row(candidates)
        return super().advance(candidates, self._opened(canvas, blocks), owner, full, stopped)

    def _opened(self, canvas: Canvas, blocks: BlockState) -> BlockState:
        """The blocks, with one more open in the rows whose last open one is decided far enough."""
        last, _, _ = self.containing(canvas, blocks.open_end - 1, blocks.index, blocks.params)
        inside = (canvas.columns >= last[:, None]) & (canvas.columns < blocks.open_end[:, None])
        masks, length = (canvas.undecided & inside).sum(1), blocks.open_end - last
        opens = (masks == 0) | self._far_enough(masks, length)
        _, end, _ = self.containing(canvas, blocks.open_end, blocks.index, blocks.params)
        end = torch.minimum(torch.where(opens & ~blocks.done, end, blocks.open_end), canvas.end)
        columns = canvas.columns
        in_open = (columns >= blocks.begin[:, None]) & (columns < end[:, None])
        return replace(blocks, open_end=end, in_open=in_open)

    def _far_enough(self, masks: Tensor, length: Tensor) -> Tensor:
        """Rows [B] whose last open block, of ``length`` [B] columns with ``masks`` [B], opens the next one."""
        return length - masks >= self.opening_share * length

    def _open_end(self, canvas: Canvas, end: Tensor, blocks: BlockState) -> Tensor:
        return torch.maximum(end, torch.minimum(blocks.open_end, canvas.end))
