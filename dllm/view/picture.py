"""What is on the canvas of a batch after each turn, for people."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from dllm.common.rowwise import padded
from dllm.contract import Turn
from dllm.contract.canvas import Canvas
from dllm.contract.reshape import Reshape

BLANK = {"fixed": -1, "sure": -1}  # what a picture holds where nothing is known; elsewhere 0
MARKS = ("corrected", "refused", "replaced")  # what a constraint may do in a column: tensors of a picture


@dataclass
class Picture:
    """The state of all rows of a batch, finished ones included. Tensors are [R, L], by request."""

    tokens: Tensor  # ids
    masked: Tensor  # still a mask
    fixed: Tensor  # the turn that wrote each column's token; 0: it was given; -1: it is masked
    fresh: Tensor  # fixed by the last turn
    guess: Tensor  # the last proposal for each column
    sure: Tensor  # its probability; -1: none
    edges: Tensor  # [R, L + 1], whether a block begins or ends here
    in_answer: Tensor  # columns of the answer
    span: Tensor  # [R, 2], the open block
    corrected: Tensor  # a constraint chose the guess, or the token, where the model's own did not fit
    refused: Tensor  # a commit that the last turn put off, since it did not go with the others
    noise: Tensor  # undecided, and the next forward sees noise there
    replaced: Tensor  # committed with another token than was proposed, which goes with the others
    remasked: Tensor  # masks that were committed before the last turn
    mask_total: int  # masks at the start and those inserted since

    @staticmethod
    def of(canvas: Canvas) -> Picture:
        """Before the first forward."""
        rows, length = int(canvas.row_id.max()) + 1, len(canvas.columns)
        blank = canvas.tokens.new_zeros((rows, length))
        no = blank.bool()
        picture = Picture(
            blank, no.clone(), blank - 1, no.clone(), blank.clone(), blank.double() - 1,
            canvas.tokens.new_zeros((rows, length + 1)).bool(), no.clone(), canvas.tokens.new_zeros((rows, 2)),
            no.clone(), no.clone(), no.clone(), no.clone(), no.clone(), int(canvas.undecided.sum()),
        )  # fmt: skip
        picture.in_answer[canvas.row_id] = canvas.valid & (canvas.columns >= canvas.start[:, None])
        picture.fixed[canvas.row_id] = torch.where(canvas.masked, -1, 0)
        picture.tokens[canvas.row_id], picture.masked[canvas.row_id] = canvas.tokens, canvas.undecided
        return picture

    def join(self, canvas: Canvas) -> Picture:
        """The picture with those rows of ``canvas`` [b], named in the order in which they joined, that it lacks."""
        there = len(self.tokens)
        fresh = canvas.select((canvas.row_id >= there).nonzero()[:, 0])
        if not len(fresh.row_id):
            return self
        more, parts = Picture.of(fresh), {}
        for entry in fields(self):
            old, new = getattr(self, entry.name), getattr(more, entry.name)
            if isinstance(old, Tensor):
                wide = [max(old.shape[1], new.shape[1])]
                parts[entry.name] = torch.cat([padded(old, wide), padded(new[there:], wide)])
        return Picture(**parts, mask_total=self.mask_total + more.mask_total)

    def propose(self, turn: Turn) -> None:
        """Note the proposals of this turn's forward. A position that it did not score keeps its last one."""
        at, scores = self._at(turn.canvas), turn.view.scores
        self.guess[at] = torch.where(scores.scored, scores.token, self.guess[at])
        self.sure[at] = torch.where(scores.scored, scores.confidence.clamp(min=0), self.sure[at])
        self.noise[at] = self.noise[at] & ~scores.scored
        self.corrected[at] = torch.where(scores.scored & turn.canvas.masked, turn.marks.corrected, self.corrected[at])

    def update(self, turn: Turn) -> None:
        """Show the first candidate of every row after this turn."""
        canvas = turn.step.owner.per_row(turn.candidates)
        if turn.reshape is not None:
            self._follow(turn.reshape, canvas, turn.blocks.turn)
        at = self._at(canvas)
        turns = self.fixed[at]
        edited = (turns > 0) & ~canvas.masked & (canvas.tokens != self.tokens[at])
        fixed = torch.where((turns >= 0) & ~edited, turns, turn.blocks.turn[:, None])
        self.fixed[at] = torch.where(canvas.masked, -1, fixed)
        self.fresh.fill_(False)
        self.fresh[at] = ((turns < 0) & ~canvas.masked) | edited
        self.remasked.fill_(False)
        self.remasked[at] = (turns > 0) & canvas.masked
        self.sure[at] = self.sure[at].masked_fill((turns >= 0) & canvas.masked, -1)  # taken back: a plain mask
        self.refused.fill_(False)
        refused, replaced = (
            turn.followed(turn.step.owner.per_row(mask)) for mask in (turn.marks.refused, turn.marks.replaced)
        )
        self.refused[at] = refused
        self.replaced[at] = (self.replaced[at] | replaced) & ~canvas.masked
        self.tokens[at], self.masked[at] = canvas.tokens, canvas.undecided
        if turn.step.shown is not None and turn.step.accepted is not None:
            redrawn = turn.view.scores.scored & canvas.undecided
            self.noise[at] = redrawn & ~turn.step.owner.per_row(turn.step.accepted)
        self.open(turn)

    def _follow(self, reshape: Reshape, canvas: Canvas, turn: Tensor) -> None:
        """Move what is kept by column to where the columns of the rows are now. Lines between blocks go."""
        length, rows = max(len(canvas.columns), self.tokens.shape[1]), canvas.row_id
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not isinstance(value, Tensor) or entry.name == "span":
                continue
            wide = padded(value, [length + (entry.name == "edges")]).clone()
            was, blank = value[rows, : reshape.before.tokens.shape[1]], BLANK.get(entry.name, 0)
            wide[rows] = False if value.dtype == torch.bool else blank
            if entry.name != "edges":
                wide[rows[:, None], canvas.columns] = reshape.moved(was, blank)
            setattr(self, entry.name, wide)
        at = self._at(canvas)
        self.fixed[at] = torch.where(reshape.filled, turn[:, None], self.fixed[at])
        self.in_answer[at] = canvas.valid & (canvas.columns >= canvas.start[:, None])
        self.mask_total += int((reshape.change.end - reshape.before.end).sum())

    def _at(self, canvas: Canvas) -> tuple[Tensor, Tensor]:
        """Where the rows of ``canvas`` are in the picture, which may have had wider ones."""
        return canvas.row_id[:, None], canvas.columns

    def open(self, turn: Turn, before: bool = False) -> None:
        """Note the blocks of the turn's rows after it, or ``before`` it."""
        names, blocks = turn.canvas.row_id, turn.view.blocks if before else turn.blocks
        last = self.edges.shape[1] - 1
        self.edges[names, blocks.begin.clamp(max=last)] = True
        self.edges[names, blocks.end.clamp(max=last)] = True
        self.span[names] = torch.stack([blocks.begin, blocks.open_end], 1)

    def column_marks(self, row: int) -> list[tuple[str, ...]]:
        """What a constraint did in each column of a row: names of marks."""
        columns = zip(*(getattr(self, mark)[row].tolist() for mark in MARKS), strict=True)
        return [tuple(mark for mark, there in zip(MARKS, column, strict=True) if there) for column in columns]

    def marks(self) -> list[str]:
        """What a constraint did anywhere."""
        return [mark for mark in MARKS if bool(getattr(self, mark).any())]

    def copy(self) -> Picture:
        """The state now, on the host."""
        tensors: dict[str, Any] = {
            entry.name: value.to("cpu", copy=True)
            for entry in fields(self)
            if isinstance(value := getattr(self, entry.name), Tensor)
        }
        return replace(self, **tensors)

    def commit_count(self) -> int:
        """Masks of the answers that are committed."""
        return self.mask_total - int((self.masked & self.in_answer).sum())

    def remask_count(self) -> int:
        """Positions that the last turn remasked."""
        return int((self.remasked & self.in_answer).sum())

    def useful(self, ends: list[int]) -> int:
        """Committed tokens that are none of ``ends``."""
        there = torch.tensor(ends, device=self.tokens.device)
        return int(((self.fixed > 0) & ~torch.isin(self.tokens, there)).sum())
