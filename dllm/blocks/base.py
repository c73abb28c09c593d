"""What a block schedule is: it opens a span of positions per row, and closes it when it is full.

Every row has its own span and moves on by itself; no row waits for another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllm.canvas import Canvas, first_of, merge, of
from dllm.errors import UserError

if TYPE_CHECKING:
    from dllm.compose.setting import Setting
    from dllm.samplers.base import Sampler
    from dllm.scores import Need, Scores


@dataclass(frozen=True)
class Sizes:
    """What the host knows of a turn's sizes without asking the device: no row has more than ``width`` open columns, no
    block begins before column ``low``, and which rows' blocks have had no forward yet (``opening``). looked: it has
    just asked, so that in this turn every row takes part, and one question more costs no wait."""

    width: int
    low: int = 0
    opening: tuple[bool, ...] = ()
    looked: bool = True


@dataclass(frozen=True)
class Span:
    """Where each row stands. Columns and counts are int64 [B]; masks are [B, L].

    begin, end: the current block, ``block`` its columns. reach: end of the last block that is open (= end without
    lookahead), ``inside`` the columns of all open blocks. number: index of the current block. masked: positions it had
    to fill when it opened. forwards: forwards it has had, the current one included. turn: forwards of the whole row.
    done [B]: nothing is left to decide. ahead: how many further blocks are open with the current one. sizes: bounds
    that make all shapes static; None: sizes are read off the device, exactly. acts [B]: rows that take part in this
    turn; the others wait for the host to see that their block is full (None: all take part).
    """

    begin: Tensor
    end: Tensor
    reach: Tensor
    number: Tensor
    masked: Tensor
    forwards: Tensor
    turn: Tensor
    done: Tensor
    block: Tensor
    inside: Tensor
    ahead: int = 0
    sizes: Sizes | None = None
    acts: Tensor | None = None

    def resized(self, canvas: Canvas, end: Tensor, reach: Tensor) -> Span:
        """The same blocks with other ends; the masks are made here, so that no turn has to."""
        behind = canvas.columns >= self.begin[:, None]
        block, inside = (behind & (canvas.columns < edge[:, None]) for edge in (end, reach))
        masked = (canvas.undecided & block).sum(1)
        return replace(self, end=end, reach=reach, masked=masked, block=block, inside=inside)

    def forwarded(self) -> Span:
        """After one more forward of the rows that take part."""
        sizes = None if self.sizes is None else replace(
            self.sizes, opening=(False,) * len(self.sizes.opening), looked=False)  # fmt: skip
        one = 1 if self.acts is None else self.acts.long()
        return replace(self, forwards=self.forwards + one, turn=self.turn + one, sizes=sizes)

    def sized(self) -> Span:
        """With bounds that hold until the host looks again; one copy to it. Exact spans have none."""
        if self.sizes is None:
            return self
        begin, forwards = torch.stack([self.begin, self.forwards]).tolist()
        opening = tuple(done == 0 for done in forwards)
        return replace(self, acts=None, sizes=Sizes(self.sizes.width, min(begin), opening))


class Blocks:
    """Base of all schedules. A variant says which block holds a given column; opening and closing are shared.

    min_forwards: a full block stays until it has had this many forwards (2: Fast-dLLM's cached LLaDA loop; S: loops
    that always run S steps). rolls_back: may mask again what turns have committed.
    """

    rolls_back = False

    def __init__(self, min_forwards: int = 1) -> None:
        if min_forwards < 1:
            raise UserError(f"blocks.min_forwards={min_forwards} must be at least 1.")
        self.min_forwards = min_forwards

    def containing(self, canvas: Canvas, column: Tensor, number: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Begin, end and number, each [B], of the block that holds ``column`` [B]; ``number`` would be the next."""
        raise NotImplementedError

    def count(self, canvas: Canvas) -> Tensor | None:
        """How many blocks each row has [B], or None when that shows only while decoding."""
        return None

    def needs(self) -> tuple[Need, ...]:
        return ()

    def widest(self, length: int) -> int:
        """The most columns that a block of a canvas of ``length`` columns can have."""
        return length

    def start(self, canvas: Canvas, ahead: int = 0, static: bool = False) -> Span:
        """The first block of every row, with ``ahead`` further ones open. static: with bounds on its sizes."""
        zero, nowhere = torch.zeros_like(canvas.start), torch.zeros_like(canvas.masked)
        done = torch.zeros_like(canvas.cut)
        length = len(canvas.columns)
        sizes = Sizes(min(length, self.widest(length) * (1 + ahead))) if static else None
        nothing = Span(zero, zero, zero, zero - 1, zero, zero, zero, done, nowhere, nowhere, ahead, sizes)
        return self._open(canvas, nothing)

    def look(self, canvas: Canvas, scores: Scores, span: Span) -> Span:
        """Called with the scores of every forward, before anything is committed from them (AdaBlock sizes here)."""
        return span

    def revise(self, candidates: Canvas, span: Span, mask_id: int) -> tuple[Canvas, Span]:
        """Called after every step, before text is cut and blocks close: a schedule may roll the canvas back (TCCF)."""
        return candidates, span

    def bound(self, ids_of: Callable[[str], list[int]]) -> Blocks:
        """The schedule with its texts turned into token ids by the model's tokenizer."""
        return self

    def check(self, setting: Setting, sampler: Sampler) -> None:
        """Refuse, with UserError, what the schedule cannot work with. Called before weights are read."""

    def acting(self, candidates: Canvas, span: Span, stop: Tensor | None = None) -> Tensor:
        """Rows [B] that still take part: their block is not full, or has not had its forwards, and neither are they
        done nor told to ``stop`` [B]. One candidate per row."""
        waits = (candidates.undecided & span.block).any(1) | (span.forwards < self.min_forwards)
        ended = span.done if stop is None else span.done | stop
        return waits & ~ended

    def advance(self, candidates: Canvas, span: Span, owner: Tensor | None = None, stop: Tensor | None = None) -> Span:
        """Close what every candidate has filled, open what is next. ``owner`` [N] is each candidate's row; ``stop`` [B]
        ends rows that have nothing left, whatever their block waits for."""
        waits = (candidates.undecided & of(span.block, owner)).any(1)
        if stop is None and bool(waits.all()):  # the usual turn, which then costs three small operations
            return span
        if owner is not None:
            waits = _any_by(waits, owner, span.done)
        close = ~waits & (span.forwards >= self.min_forwards) & ~span.done
        close = close if stop is None else close | stop
        if not bool(close.any()):
            return span
        unfinished = candidates.undecided.any(1)
        if owner is not None:
            unfinished = _any_by(unfinished, owner, span.done)
            candidates = candidates.select(first_of(owner))
        if bool((close & unfinished).any()):
            span = merge(close & unfinished, self._open(candidates, span), span)
        return replace(span, done=span.done | (close & ~unfinished))

    def _open(self, canvas: Canvas, span: Span) -> Span:
        """The block of the first position left to decide at or after the current block's end."""
        left = canvas.undecided
        column = torch.where(left, canvas.columns, left.shape[1]).amin(1)
        finished = column == left.shape[1]
        begin, end, number = self.containing(canvas, column, span.number + 1)
        end = torch.minimum(end, canvas.end)
        opened = replace(
            span, begin=begin, number=number, forwards=torch.zeros_like(span.forwards), done=span.done | finished
        )
        return opened.resized(canvas, end, self._reach(canvas, end, number, span.ahead))

    def _reach(self, canvas: Canvas, end: Tensor, number: Tensor, ahead: int) -> Tensor:
        for further in range(ahead):
            end = torch.minimum(self.containing(canvas, end, number + 1 + further)[1], canvas.end)
        return end


def _any_by(value: Tensor, owner: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).scatter_reduce(0, owner, value, "amax")
