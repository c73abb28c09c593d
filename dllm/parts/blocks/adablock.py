"""End each block at a confident delimiter, such as a newline (AdaBlock-dLLM, arXiv 2509.26432)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

import torch
from torch import Tensor

from dllm.common.errors import in_range
from dllm.common.ranking import argmax_mask, one_of
from dllm.common.rowwise import update_rows
from dllm.contract import BlockState, Need, Scores, State
from dllm.contract.canvas import Canvas
from dllm.contract.clash import USE_FIXED, Clash
from dllm.contract.setting import replaced
from dllm.contract.traits import BlocksTraits
from dllm.parts.blocks.base import Blocks


class AdaBlock(Blocks):
    """A block is sized once, from its first forward. The window is the next ``window_ratio`` of the answer's length.
    The most confident delimiter proposal in it ends the block if its confidence reaches ``delimiter_threshold``; else
    the block has ``block_length`` columns. delimiter_ids: None takes the tokenizer's newline token.
    """

    traits = BlocksTraits(slides=False, rolls_back=False)
    clashes = (
        Clash(
            lambda c: c.part.delimiter_ids is None,
            "{blocks.delimiter_ids} takes the tokenizer's newline, and this model has no tokenizer.",
            [USE_FIXED],
            "Or name the ids.",
        ),
    )

    def __init__(
        self,
        block_length: int = 32,
        delimiter_ids: Sequence[int] | None = None,
        delimiter_threshold: float = 0.3,
        window_ratio: float = 0.25,
        min_forwards: int = 1,
    ) -> None:
        super().__init__(min_forwards)
        in_range("blocks.block_length", block_length, 1)
        in_range("blocks.window_ratio", window_ratio, 0.0, 1.0)
        self.default_length, self.window_ratio = block_length, window_ratio
        self.delimiter_ids = None if delimiter_ids is None else list(delimiter_ids)
        self.delimiter_threshold = delimiter_threshold

    def resolved(self, ids_of: Callable[[str], list[int]]) -> AdaBlock:
        if self.delimiter_ids is not None:
            return self
        return replaced(self, delimiter_ids=ids_of("\n")[-1:])

    def widest(self, length: int) -> int:
        return min(length, max(self.default_length, ceil(self.window_ratio * length)))

    def needs(self) -> tuple[Need, ...]:
        window = Need("ahead", ratio=self.window_ratio, first_forward_only=True)
        return (window, Need("ahead", span=(0, self.default_length), first_forward_only=True))

    def containing(
        self, canvas: Canvas, column: Tensor, number: Tensor, params: State
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A block of the default length that begins at ``column``; ``resize`` may change its end."""
        return column, column + self.default_length, number

    def resize(self, canvas: Canvas, scores: Scores, blocks: BlockState) -> BlockState:
        fresh = (blocks.forwards == 1) & ~blocks.done
        window = (self.window_ratio * (canvas.initial_end - canvas.start)).floor().long()
        offset = canvas.columns - blocks.begin[:, None]
        near = canvas.undecided & scores.scored & (offset >= 0) & (offset < window[:, None])
        delimiter = argmax_mask(scores.confidence, near & one_of(scores.token, self.delimiter_ids or ()))
        sure = (delimiter & (scores.confidence >= self.delimiter_threshold)).any(1)
        end = torch.where(sure, (delimiter * canvas.columns).sum(1) + 1, blocks.begin + self.default_length)
        end = torch.minimum(end, canvas.end)
        sized = blocks.resized(canvas, end, self._open_end(canvas, end, blocks))
        return update_rows(fresh, sized, blocks)
