"""Collects the turns of a decode into rollouts, on the model's device: nothing is asked of it before the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dllm.contract import Turn
from dllm.contract.canvas import Request
from dllm.models.text.ids import Ids
from dllm.record.turns import log_probabilities
from dllm.scoring.rl.rollouts import Origin


@dataclass(frozen=True)
class SeenTurn:
    """What is kept of one turn; B rows, G answer columns."""

    names: Tensor  # [B] number of each row's request
    turn: Tensor  # [B] forwards of the row so far, this one included; 0: it waited
    width: Tensor  # [B] its valid columns
    draws: Tensor | None  # [B, G] proposals at the masked columns that were scored, -1 elsewhere (None: not kept)
    canvas: Tensor | None  # [B, G] answer before the step (None: not kept)


class GatheredTurns:
    """An observer of the loop. draws: keep proposals and canvases of every turn."""

    def __init__(
        self, requests: Sequence[Request], ids: Ids, pad: int, device: torch.device, dtype: torch.dtype, draws: bool
    ) -> None:
        self.draws, self.mask = draws, ids.placeholder
        starts = [request.answer_start for request in requests]
        self.start = torch.tensor(starts, device=device)
        self.length = torch.tensor([len(each.tokens) - start for each, start in zip(requests, starts, strict=True)]).to(
            device
        )
        answers = [torch.tensor(each.tokens[start:]) for each, start in zip(requests, starts, strict=True)]
        self.tokens = pad_sequence(answers, batch_first=True, padding_value=pad).to(device)
        holes = [torch.tensor(each.masked[start:]) for each, start in zip(requests, starts, strict=True)]
        self.hole = pad_sequence(holes, batch_first=True, padding_value=False).to(device)
        self.columns = torch.arange(self.tokens.shape[1], device=device)
        self.step = torch.zeros_like(self.tokens, dtype=torch.int32)
        self.origin = torch.zeros_like(self.tokens, dtype=torch.int8)
        self.block = torch.full_like(self.step, -1)
        self.own = torch.full(self.tokens.shape, torch.nan, dtype=dtype, device=device)
        self.drawn = self.own.clone()
        self.taken_back = torch.zeros_like(self.start)  # [R] commits that a rule or a schedule took back
        self.bent = torch.zeros_like(self.start, dtype=torch.bool)  # [R] a constraint changed or held up a commit
        self.seen: list[SeenTurn] = []

    @torch.no_grad()
    def observe(self, turn: Turn) -> None:
        """Take what a turn leaves. Its tensors last until the next one only."""
        canvas, after, step, marks = turn.canvas, turn.candidates, turn.step, turn.marks
        assert step.owner.is_single, "rules with several candidates are refused before"
        names, active, inside = canvas.row_id, turn.active, self._answers(canvas.row_id, len(canvas.columns))
        own, drawn = log_probabilities(turn)
        masked, masks, commit = (inside(mask) for mask in (canvas.masked | step.remask, after.masked, step.commit))
        is_filled, number = masked & ~masks & ~commit, turn.view.blocks.turn[:, None]
        origin = torch.full_like(commit, Origin.DRAWN, dtype=torch.int8).masked_fill(inside(turn.forced), Origin.FORCED)
        origin = origin.masked_fill(inside(marks.corrected | marks.replaced), Origin.CONSTRAINED)
        early = (
            self.hole[names] & ~inside(canvas.masked) & (self.origin[names] == Origin.GIVEN)
        )  # before the first forward
        self._write(names, active, self.origin, early, Origin.FILLED)
        self._write(names, active, self.tokens, masks | commit | is_filled | early, inside(after.tokens))
        self._write(names, active, self.step, commit | is_filled, number)
        self._write(names, active, self.step, masks, 0)
        self._write(names, active, self.origin, commit, origin)
        self._write(names, active, self.origin, is_filled, Origin.FILLED)
        self._write(names, active, self.origin, masks, Origin.GIVEN)
        for values, numbers in ((self.own, own), (self.drawn, drawn)):
            self._write(names, active, values, commit, inside(numbers))
            self._write(names, active, values, is_filled | masks, torch.nan)
        self._write(names, active, self.block, inside(turn.view.blocks.in_block), turn.view.blocks.index[:, None])
        undone = (inside(step.remask) | masks) & ~inside(canvas.masked)
        self.taken_back[names] += (undone | (commit & masks)).sum(1) * active
        self.bent[names] |= (inside(marks.corrected | marks.refused | marks.replaced)).any(1) & active
        draws = canvas_ids = None
        if self.draws:
            is_scored = inside(canvas.undecided & turn.view.scores.scored)
            draws = inside(turn.view.scores.token).where(is_scored, -1).int()
            canvas_ids = inside(canvas.tokens.masked_fill(canvas.masked, self.mask)).int()
        turns = (turn.view.blocks.turn * active).clone()
        self.seen.append(SeenTurn(names.clone(), turns, canvas.valid.sum(1), draws, canvas_ids))

    def _answers(self, names: Tensor, length: int) -> Callable[[Tensor], Tensor]:
        """What takes the answers [B, G] out of canvases [B, L]; what a row did not ask for is False or 0."""
        at = self.start[names][:, None] + self.columns
        is_answer, at = self.columns < self.length[names][:, None], at.clamp(max=length - 1)

        def inside(values: Tensor) -> Tensor:
            cells = values.gather(1, at)
            return cells & is_answer if cells.dtype == torch.bool else cells

        return inside

    def _write(self, names: Tensor, active: Tensor, values: Tensor, where: Tensor, new: Tensor | float) -> None:
        """Put ``new`` [B, G] into rows ``names`` of ``values`` [R, G], where a row acts and ``where`` [B, G] holds."""
        new = torch.as_tensor(new, device=values.device).to(values.dtype)
        values[names] = torch.where(where & active[:, None], new, values[names])

    def widths(self) -> Tensor:
        """Valid columns of the row in each of its forwards [R, T], int32; 0 where it had ended."""
        return self._by_forward([turn.width.int() for turn in self.seen], 0)

    def draw_ids(self) -> Tensor | None:
        """What each forward proposed [R, T, G], int32."""
        return (
            self._by_forward([turn.draws for turn in self.seen if turn.draws is not None], -1) if self.draws else None
        )

    def canvas_ids(self) -> Tensor | None:
        """The answer before each forward [R, T, G], int32."""
        canvases = [turn.canvas for turn in self.seen if turn.canvas is not None]
        return self._by_forward(canvases, self.mask) if self.draws else None

    def forwards(self) -> Tensor:
        """How many forwards each row took [R]."""
        counts = torch.zeros_like(self.start)
        for turn in self.seen:
            counts[turn.names] = torch.maximum(counts[turn.names], turn.turn)
        return counts

    def _by_forward(self, values: Sequence[Tensor], blank: int) -> Tensor:
        """Values [B, ...] of each turn by row and its forward [R, T, ...]."""
        most = int(torch.stack([turn.turn.amax() for turn in self.seen]).amax())
        out = values[0].new_full((len(self.start), most + 1, *values[0].shape[1:]), blank)
        for turn, value in zip(self.seen, values, strict=True):  # a row that waits writes to place 0
            out[turn.names, turn.turn] = value
        return out[:, 1:].contiguous()

    def blocks(self, fixed: int | None, grid: Tensor) -> Tensor:
        """Number of each column's block [R, G], int32; of a column whose block was never the current one by the length
        of all blocks, or that of the column before. grid [R]: column that blocks count from."""
        if fixed is None:
            numbers = self.block.cummax(1).values.clamp(min=0)
        else:
            numbers = ((self.start - grid)[:, None] + self.columns) // fixed - ((self.start - grid) // fixed)[:, None]
        return torch.where(self.block < 0, numbers.int(), self.block)
