"""The contract of a block schedule: it opens a range of columns in each row, and closes it when it is full.

Every row has blocks of its own and moves on by itself; no row waits for another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from dllm.common.errors import Refusal, in_range, name_of
from dllm.common.rowwise import Owner
from dllm.contract import BlockState, Need, Scores, State
from dllm.contract.canvas import Canvas, per_row
from dllm.contract.checks import is_laid
from dllm.contract.clash import Clash
from dllm.contract.reshape import Reshape
from dllm.contract.shapes import Shapes
from dllm.contract.traits import BlocksTraits, declared


class Blocks:
    """Base of all schedules. A subclass implements ``containing``, which says what block holds a column; opening and
    closing are shared. B rows, N candidates, L columns.

    Order of calls: ``resolved`` before weights are read, ``start`` once for a batch. Then in every turn: ``resize``
    with the scores of the forward, ``revise`` after the step, and ``advance`` after the end-of-text policy.

    min_forwards: a full block stays open until it has had this many forwards (2: Fast-dLLM's cached LLaDA loop; S:
    loops that always run S steps). ``traits`` say what other parts must know of a schedule.
    """

    traits: BlocksTraits
    clashes: ClassVar[tuple[Clash, ...]] = ()  # what it does not go together with
    # names of the whole numbers that each row of a batch may have of its own, read from ``BlockState.params``
    per_request: tuple[str, ...] = ("min_forwards",)
    fixed_length: int | None = None  # of every block but the last; None if lengths differ

    def __init_subclass__(cls) -> None:
        declared(cls, "BlocksTraits", "revise", "advance", "_open_end")

    def __init__(self, min_forwards: int = 1) -> None:
        in_range("blocks.min_forwards", min_forwards, 1)
        self.min_forwards = min_forwards

    def containing(
        self, canvas: Canvas, column: Tensor, number: Tensor, params: State
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Begin, end and number, each [B], of the block that holds ``column`` [B]. ``number`` [B]: the number that
        comes next, on which begin and end must not depend. params: the rows' own parameters [B]."""
        raise NotImplementedError

    def count(self, canvas: Canvas) -> Tensor | None:
        """How many blocks each row has [B]; None if only decoding shows it."""
        return None

    def widest(self, length: int) -> int:
        """The most columns that a block of a canvas of ``length`` columns can have."""
        return length

    def needs(self) -> tuple[Need, ...]:
        """What must be scored for the schedule."""
        return ()

    def resolved(self, ids_of: Callable[[str], list[int]]) -> Blocks:
        """The schedule with token ids instead of its texts; ``ids_of`` is the model's tokenizer. Raises UserError for a
        text that the schedule cannot use."""
        return self

    def start(self, canvas: Canvas, lookahead: int = 0, shapes: Shapes = Shapes()) -> BlockState:  # noqa: B008  frozen
        """The first block of every row of ``canvas`` [B], with ``lookahead`` further ones open."""
        zero, done, length = torch.zeros_like(canvas.start), torch.zeros_like(canvas.shortened), len(canvas.columns)
        unopened = BlockState(
            begin=zero, end=zero, open_end=zero, index=zero - 1, masks=zero, forwards=zero, turn=zero, done=done,
            host_wait=zero, active=~done, in_block=canvas.no_positions, in_open=canvas.no_positions,
            lookahead=lookahead, alone=self.traits.one_at_a_time and not lookahead, shapes=shapes,
            params=self.params(canvas),
        )  # fmt: skip
        opened = self._open(canvas, unopened)
        width, done = min(length, self.widest(length) * (1 + lookahead)), ~canvas.undecided.any(1)
        return replace(opened, done=done, active=~done, shapes=shapes.started(width))

    def params(self, canvas: Canvas) -> State:
        """``BlockState.params`` of the rows of ``canvas`` [B]: the ``per_request`` parameters, and what follows from
        them once for the whole decode."""
        return {name: per_row(getattr(self, name), canvas).long() for name in self.per_request}

    def resize(self, canvas: Canvas, scores: Scores, blocks: BlockState) -> BlockState:
        """The blocks, sized from the scores [B, L] of a forward before anything is committed from them (AdaBlock)."""
        return blocks

    def revise(self, candidates: Canvas, blocks: BlockState, mask_id: int) -> tuple[Canvas, BlockState]:
        """Candidates [N] and blocks [B] after a step, before the end-of-text policy: a schedule may roll the canvas
        back (TCCF)."""
        return candidates, blocks

    def advance(
        self, candidates: Canvas, blocks: BlockState, owner: Owner, full: Tensor, stopped: Tensor
    ) -> BlockState:
        """Close the blocks that every candidate [N] of a row has filled, and open the next. full [N]: candidates whose
        block may close. Rows ``stopped`` [B] close theirs at once. A row that closes its block with nothing left to
        decide is done."""
        close = (owner.all(full) & (blocks.forwards >= blocks.params["min_forwards"])) | stopped
        if not blocks.shapes.any(close):  # in most turns no block is full
            return blocks
        opens = close & owner.any(candidates.undecided.any(1))
        if blocks.shapes.any(opens):
            blocks = blocks.moved(opens, self._open(owner.per_row(candidates), blocks))
        return replace(blocks, done=blocks.done | (close ^ opens))

    def follow(self, canvas: Canvas, blocks: BlockState, reshape: Reshape) -> BlockState:
        """The blocks of rows that have changed their lengths to ``canvas`` [B]. They begin where they began, and end
        where such a block ends in a row of that length. A row whose block would begin after its end is done; one that
        was done and has got masks opens another block. Only schedules whose traits say that they follow are asked."""
        changed, again = reshape.change.changes(reshape.before), blocks.done & reshape.open.any(1)
        end, open_end = (
            torch.where(changed & ~again, torch.minimum(self._end_of(canvas, column, blocks), canvas.end), before)
            for column, before in ((blocks.begin, blocks.end), (blocks.open_end - 1, blocks.open_end))
        )
        blocks_after = blocks.resized(canvas, end, torch.maximum(end, open_end))
        blocks_after = replace(blocks_after, masks=torch.where(changed, blocks_after.masks, blocks.masks))
        blocks_after = blocks_after.moved(again, self._open(canvas, blocks_after))
        return replace(blocks_after, done=(blocks.done & ~again) | (blocks_after.begin >= canvas.end))

    def _end_of(self, canvas: Canvas, column: Tensor, blocks: BlockState) -> Tensor:
        """The end [B] of the block that holds ``column`` [B]."""
        return self.containing(canvas, column, blocks.index, blocks.params)[1]

    def _open(self, canvas: Canvas, blocks: BlockState) -> BlockState:
        """The block of the first position left to decide at or after the current block's end. Of rows that have none
        left, it says nothing."""
        undecided = canvas.undecided
        column = torch.where(undecided, canvas.columns, undecided.shape[1]).amin(1)
        begin, end, number = self._containing(canvas, column, blocks)
        if not blocks.shapes.bounded and bool((undecided.any(1) & ((column < begin) | (column >= end))).any()):
            raise Refusal(
                "{blocks}: containing() must return a block that holds the column it was asked for: begin <= column "
                "< end.",
                [name_of(self)],
            )
        end = torch.minimum(end, canvas.end)
        zero = canvas.columns[0].expand_as(begin)  # no launch
        opened = replace(blocks, begin=begin, index=number, forwards=zero)
        return opened.resized(canvas, end, self._open_end(canvas, end, blocks))

    def _containing(self, canvas: Canvas, column: Tensor, blocks: BlockState) -> tuple[Tensor, Tensor, Tensor]:
        """``containing``, whose answer is refused (UserError) where it is not a block."""
        block, who = self.containing(canvas, column, blocks.index + 1, blocks.params), f"{{blocks={name_of(self)}}}"
        if not isinstance(block, tuple) or len(block) != 3:
            raise Refusal(f"{who}: containing() returned {type(block).__name__}, and must return begin, end, number.")
        for name, value in zip(("begin", "end", "number"), block, strict=True):
            is_laid(value, f"{who}: {name} of containing()", tuple(column.shape), (torch.int64,), column)
        return block

    def _open_end(self, canvas: Canvas, end: Tensor, blocks: BlockState) -> Tensor:
        for _ in range(blocks.lookahead):
            end = torch.minimum(self.containing(canvas, end, blocks.index, blocks.params)[1], canvas.end)
        return end
