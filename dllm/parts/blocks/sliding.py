"""Decode the leftmost masks, in a window that moves after every turn (DSB, arXiv 2602.05992; WeDLM, 2512.22737)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dllm.common.errors import in_range
from dllm.common.rowwise import Owner, update_rows
from dllm.contract import BlockState, State
from dllm.contract.canvas import Canvas
from dllm.contract.clash import USE_FIXED, Clash
from dllm.contract.traits import BlocksTraits
from dllm.parts.blocks.base import Blocks


class Sliding(Blocks):
    """The ``block_length`` leftmost masks are open; with ``max_block_length``, those of them that are fewer columns
    than that after the leftmost one. The window is set again after every turn, so none waits for a border.

    A row has a single block, which never closes: its number stays 0, its masks are those of the whole answer, and its
    forwards those of the row, so that fixed schedules run over the answer. DSB calls ``max_block_length`` null greedy,
    and equal to ``block_length`` constant; that is WeDLM's window, too.
    """

    traits = BlocksTraits(rolls_back=False, slides=True, one_at_a_time=True)
    per_request = ("block_length",)
    clashes = (
        Clash(
            lambda c: c.does.edits,
            "{blocks} moves its window on with every token, but {sampler} replaces tokens of a block, which it holds "
            "open.",
            [USE_FIXED],
        ),
    )

    def __init__(self, block_length: int = 32, max_block_length: int | None = None) -> None:
        super().__init__()
        in_range("blocks.block_length", block_length, 1)
        in_range("blocks.max_block_length", max_block_length, 1, advice="{null} means no bound.")
        self.block_length, self.max_block_length = block_length, max_block_length

    def containing(
        self, canvas: Canvas, column: Tensor, number: Tensor, params: State
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The window that begins at ``column``: it ends after its last mask, or at the row's end if masks are few."""
        masks = (canvas.undecided & (canvas.columns >= column[:, None])).cumsum(1)
        end = (masks < params["block_length"][:, None]).sum(1) + 1  # the canvas is narrower than that if masks are few
        if self.max_block_length is not None:
            end = torch.minimum(end, column + self.max_block_length)
        return column, end, torch.zeros_like(number)

    def widest(self, length: int) -> int:
        return length if self.max_block_length is None else min(length, self.max_block_length)

    def count(self, canvas: Canvas) -> Tensor:
        return torch.ones_like(canvas.start)

    def advance(
        self, candidates: Canvas, blocks: BlockState, owner: Owner, full: Tensor, stopped: Tensor
    ) -> BlockState:
        """Move the window to what is left to decide in any candidate [N] of a row."""
        undecided = owner.sum(candidates.undecided.long()) > 0
        unfinished = undecided.any(1) & ~blocks.done
        moved = self._open(replace(owner.per_row(candidates), masked=undecided), blocks)
        return replace(update_rows(unfinished, moved, blocks), done=~unfinished)

    def _open(self, canvas: Canvas, blocks: BlockState) -> BlockState:
        first = blocks.index < 0
        masks = torch.where(first, canvas.undecided.sum(1), blocks.masks)
        return replace(super()._open(canvas, blocks), masks=masks, forwards=blocks.forwards)
