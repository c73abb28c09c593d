"""What a block schedule is: it opens a range of positions in each row, and closes it when it is full.

Every row has blocks of its own and moves on by itself; no row waits for another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from dllm.canvas import Canvas
from dllm.common.rowwise import Owner, update_rows
from dllm.contract import BlockState, Need, Rule, Scores
from dllm.errors import UserError
from dllm.setting import Setting
from dllm.shapes import Bounded, Shapes


class Blocks:
    """Base of all schedules. A variant says which block holds a given column; opening and closing are shared.

    The loop calls, in every turn: ``resize`` with the scores of the forward, ``revise`` after the step, and ``advance``
    once the end-of-text policy has been applied; ``start`` before the first turn. min_forwards: a full block stays
    until it has had this many forwards (2: Fast-dLLM's cached LLaDA loop; S: loops that always run S steps).
    rolls_back: may mask again what turns have committed. fixed_length: the length of every block but the last, None
    where blocks differ.
    """

    rolls_back = False
    fixed_length: int | None = None

    def __init__(self, min_forwards: int = 1) -> None:
        if min_forwards < 1:
            raise UserError(f"blocks.min_forwards={min_forwards} must be at least 1.")
        self.min_forwards = min_forwards

    def containing(self, canvas: Canvas, column: Tensor, number: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Begin, end and number, each [B], of the block that holds ``column`` [B]; ``number`` would be the next."""
        raise NotImplementedError

    def count(self, canvas: Canvas) -> Tensor | None:
        """How many blocks each row has [B]; None where only decoding shows it."""
        return None

    def widest(self, length: int) -> int:
        """The most columns that a block of a canvas of ``length`` columns can have."""
        return length

    def needs(self) -> tuple[Need, ...]:
        """What must be scored for the schedule."""
        return ()

    def resolved(self, ids_of: Callable[[str], list[int]]) -> Blocks:
        """The schedule with its texts turned into token ids by the model's tokenizer. Raises UserError for a text that
        is not what the schedule wants."""
        return self

    def check(self, setting: Setting, sampler: Rule) -> None:
        """Refuse, with UserError, what the schedule cannot work with. Called before weights are read."""

    def start(self, canvas: Canvas, lookahead: int = 0, bounded: bool = False) -> BlockState:
        """The first block of every row, with ``lookahead`` further ones open. bounded: so are its shapes."""
        zero, done, length = torch.zeros_like(canvas.start), torch.zeros_like(canvas.cut), len(canvas.columns)
        shapes = Bounded(min(length, self.widest(length) * (1 + lookahead))) if bounded else Shapes()
        unopened = BlockState(
            begin=zero, end=zero, open_end=zero, number=zero - 1, masks=zero, forwards=zero, turn=zero, done=done,
            active=~done, in_block=canvas.nothing, in_open=canvas.nothing, lookahead=lookahead, shapes=shapes,
        )  # fmt: skip
        return self._open(canvas, unopened)

    def resize(self, canvas: Canvas, scores: Scores, blocks: BlockState) -> BlockState:
        """Called with the scores of every forward, before anything is committed from them (AdaBlock sizes here)."""
        return blocks

    def revise(self, candidates: Canvas, blocks: BlockState, mask_id: int) -> tuple[Canvas, BlockState]:
        """Called after every step, before text is cut and blocks close: a schedule may roll the canvas back (TCCF)."""
        return candidates, blocks

    def active(self, candidates: Canvas, blocks: BlockState, stopped: Tensor) -> Tensor:
        """Rows [B] that still take part: their block is not full, or has not had its forwards, and neither are they
        done nor told to stop. One candidate per row."""
        waits = (candidates.undecided & blocks.in_block).any(1) | (blocks.forwards < self.min_forwards)
        return waits & ~(blocks.done | stopped)

    def advance(self, candidates: Canvas, blocks: BlockState, owner: Owner, stopped: Tensor) -> BlockState:
        """Close what every candidate [N] has filled, open what is next. ``stopped`` [B] ends rows that have nothing
        left, whatever their block waits for."""
        waits = owner.any((candidates.undecided & owner.each(blocks.in_block)).any(1))
        if bool((waits & ~stopped).all()):  # the usual turn, which then costs four small operations
            return blocks
        close = (~waits & (blocks.forwards >= self.min_forwards) & ~blocks.done) | stopped
        if not bool(close.any()):
            return blocks
        unfinished = owner.any(candidates.undecided.any(1))
        if bool((close & unfinished).any()):
            blocks = update_rows(close & unfinished, self._open(owner.one(candidates), blocks), blocks)
        return replace(blocks, done=blocks.done | (close & ~unfinished))

    def _open(self, canvas: Canvas, blocks: BlockState) -> BlockState:
        """The block of the first position left to decide at or after the current block's end."""
        left = canvas.undecided
        column = torch.where(left, canvas.columns, left.shape[1]).amin(1)
        finished = column == left.shape[1]
        begin, end, number = self.containing(canvas, column, blocks.number + 1)
        end = torch.minimum(end, canvas.end)
        opened = replace(
            blocks, begin=begin, number=number, forwards=torch.zeros_like(blocks.forwards), done=blocks.done | finished
        )
        return opened.resized(canvas, end, self._open_end(canvas, end, number, blocks.lookahead))

    def _open_end(self, canvas: Canvas, end: Tensor, number: Tensor, lookahead: int) -> Tensor:
        for further in range(lookahead):
            end = torch.minimum(self.containing(canvas, end, number + 1 + further)[1], canvas.end)
        return end
