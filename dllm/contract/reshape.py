"""What a part changes of a row's length, and the one gather that everything kept by column follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm.common.rowwise import Rowwise
from dllm.contract.canvas import Canvas
from dllm.contract.step import State

STEP = 16  # columns: a canvas is this much wider at a time, so that a row that grows by one rarely moves all


@dataclass(frozen=True)
class LengthChange(Rowwise):
    """What becomes of B rows after a turn, in this order: masks are inserted, masks and ends of text are appended, and
    the row is cut. Of a row that stays as it is, the counts are 0 and ``end`` is its own."""

    at: Tensor  # [B] column after which masks are inserted
    insert: Tensor  # [B] how many masks are inserted there
    append: Tensor  # [B] how many masks are appended
    fill: Tensor  # [B] how many ends of text are appended after them
    end: Tensor  # [B] the column after the last that stays

    @staticmethod
    def none(canvas: Canvas) -> LengthChange:
        """No change of the rows of ``canvas`` [B]."""
        zero = torch.zeros_like(canvas.end)
        return LengthChange(zero, zero, zero, zero, canvas.end)

    def changes(self, canvas: Canvas) -> Tensor:
        """Rows of ``canvas`` that do not stay as they are [B]."""
        return (self.insert + self.append + self.fill > 0) | (self.end != canvas.end)


@dataclass(frozen=True)
class Reshape:
    """A change of lengths as a gather: the columns of B rows, from L before to M after it."""

    change: LengthChange  # what was asked for
    before: Canvas  # [B] the rows before it
    source: Tensor  # [B, M] the column that each one was (0 for new ones)
    kept: Tensor  # [B, M] columns that were there
    open: Tensor  # [B, M] new columns that are masked
    filled: Tensor  # [B, M] new columns that hold an end of text

    @staticmethod
    def of(canvas: Canvas, change: LengthChange, width: int) -> Reshape:
        """The gather of ``change`` to canvases of ``width`` columns, which hold every row."""
        columns = torch.arange(width, device=canvas.columns.device)
        at, insert, end = change.at[:, None], change.insert[:, None], canvas.end[:, None] + change.insert[:, None]
        inserted = (columns > at) & (columns <= at + insert)
        source = torch.where(columns > at + insert, columns - insert, columns)
        there = columns < change.end[:, None]
        kept = there & (columns < end) & ~inserted
        masks = there & (inserted | ((columns >= end) & (columns < end + change.append[:, None])))
        return Reshape(change, canvas, source.masked_fill(~kept, 0), kept, masks, there & ~kept & ~masks)

    def moved(self, value: Tensor, blank: float = 0) -> Tensor:
        """What is kept by column [B, L, ...], where its columns are now [B, M, ...]. New ones are ``blank``."""
        more = [1] * (value.dim() - 2)
        source, kept = self.source.view(*self.source.shape, *more), self.kept.view(*self.kept.shape, *more)
        values = value.gather(1, source.expand(*self.source.shape, *value.shape[2:]))
        return torch.where(kept, values, torch.full_like(values, blank))

    def canvas(self, mask_id: int, eos_id: int) -> Canvas:
        """The canvas [B] of M columns."""
        old = self.before
        tokens = self.moved(old.tokens, eos_id).masked_fill(self.open, mask_id).masked_fill(self.filled, eos_id)
        new, end = self.open | self.filled, self.change.end
        given = self.moved(old.given)
        columns = torch.arange(tokens.shape[1], device=end.device)
        last = torch.where(given, columns, -1).amax(1, keepdim=True)
        valid = self.moved(old.valid) | new
        return replace(
            old,
            tokens=tokens,
            masked=self.moved(old.masked) | self.open,
            valid=valid,
            given=given,
            tail=valid & (columns > last),
            end=end,
            initial_end=end,
            columns=columns,
        )

    def state(self, state: State, by_block: Mapping[str, float]) -> State:
        """A sampler's state after it. by_block: entries that begin with that number; those that are kept by column
        [B, L, ...] move, and numbers of a row [B] stay."""
        moved = {name: blank for name, blank in by_block.items() if state[name].dim() > 1}
        return state | {name: self.moved(state[name], blank) for name, blank in moved.items()}


def reshaped(canvas: Canvas, change: LengthChange) -> Reshape | None:
    """The gather of a change of ``canvas`` [B]; None where no row changes. It asks the device once."""
    changed, width = torch.stack([change.changes(canvas).any().long(), change.end.amax()]).tolist()
    if not changed:
        return None
    return Reshape.of(canvas, change, -(-width // STEP) * STEP)
