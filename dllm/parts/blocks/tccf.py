"""Decode long blocks up to a marker and short ones after it (TCCF of TDAR, arXiv 2602.09555)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dllm.common.errors import Refusal, in_range
from dllm.common.rowwise import update_rows
from dllm.contract import BlockState, State
from dllm.contract.canvas import Canvas
from dllm.contract.clash import USE_FIXED, Clash
from dllm.contract.setting import replaced
from dllm.contract.traits import BlocksTraits
from dllm.parts.blocks.base import Blocks


class TCCF(Blocks):
    """Think coarse, criticise fine. Blocks have ``block_length`` columns until a full one holds ``marker``. What
    follows the marker in it is remasked and decoded in blocks of ``fine_length``. marker: a token id, or a text of one
    token.
    """

    traits = BlocksTraits(slides=False, rolls_back=True)
    clashes = (
        Clash(
            lambda c: c.does.branches, "{blocks} rolls the canvas back, so {sampler} cannot draft over it.", [USE_FIXED]
        ),
        Clash(
            lambda c: c.does.edits,
            "{blocks} cuts a full block at its marker at once, but {sampler} may replace the marker.",
            [USE_FIXED],
        ),
        Clash(
            lambda c: c.attention.block is not None,
            "{blocks} changes the block length, but a {attention.name:value} model decodes at the length it was "
            "trained for.",
            [USE_FIXED],
        ),
    )

    def __init__(
        self, block_length: int = 16, fine_length: int = 1, marker: int | str = "</think>", min_forwards: int = 1
    ) -> None:
        super().__init__(min_forwards)
        in_range("blocks.block_length", block_length, 1)
        in_range("blocks.fine_length", fine_length, 1)
        self.coarse_length, self.fine_length, self.marker = block_length, fine_length, marker

    def resolved(self, ids_of: Callable[[str], list[int]]) -> TCCF:
        if isinstance(self.marker, int):
            return self
        ids = ids_of(self.marker)
        if len(ids) != 1:
            raise Refusal(
                f"{{blocks.marker:quoted}} is {len(ids)} tokens in this vocabulary; it must be one. Name another "
                "text, or a token id.",
                [self.marker],
            )
        return replaced(self, marker=ids[0])

    def widest(self, length: int) -> int:
        return min(length, max(self.coarse_length, self.fine_length))

    def containing(
        self, canvas: Canvas, column: Tensor, number: Tensor, params: State
    ) -> tuple[Tensor, Tensor, Tensor]:
        after = self._after_marker(canvas)
        fine = column >= after
        origin = torch.where(fine, after, canvas.grid)
        length = torch.where(fine, self.fine_length, self.coarse_length)
        begin = origin + (column - origin) // length * length
        return begin, begin + length, number

    def revise(self, candidates: Canvas, blocks: BlockState, mask_id: int) -> tuple[Canvas, BlockState]:
        after = self._after_marker(candidates)
        full = ~(candidates.undecided & blocks.in_block).any(1) & ~blocks.done
        switch = full & (blocks.begin < after) & (after < blocks.end)
        if not blocks.shapes.any(switch):
            return candidates, blocks
        back = blocks.in_block & (candidates.columns >= after[:, None]) & switch[:, None]
        end = torch.where(switch, after, blocks.end)
        return candidates.remask(back, mask_id), update_rows(switch, blocks.resized(candidates, end, end), blocks)

    def _after_marker(self, canvas: Canvas) -> Tensor:
        """Column after the answer's first committed marker [B]; beyond the canvas if it has none."""
        if isinstance(self.marker, str):
            raise Refusal(
                "{blocks.marker:quoted} is text, and there is no tokenizer. Give its token id.", [self.marker]
            )
        is_marker = (canvas.tokens == self.marker) & ~canvas.masked & ~canvas.given & canvas.valid
        return torch.where(is_marker, canvas.columns, len(canvas.columns)).amin(1) + 1
