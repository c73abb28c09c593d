"""The hidden states that one forward computed, and where the columns of its candidates are among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm.common.rowwise import update_rows
from dllm.contract.canvas import Canvas
from dllm.parts.cache.passes import Call

# Of a call: which candidates it ran [b] (None: all), their hidden states [b, n, D], and the place of each column among
# these [b, L] (-1: nowhere; None: in order); and which of the candidates this is what counts of [b] (None: all).
StatesByPlace = tuple["Tensor | None", Tensor, "Tensor | None", "Tensor | None"]


@dataclass(frozen=True)
class CallStates:
    """What a call computed."""

    call: Call  # the call
    hidden: Tensor  # [b, n, D] hidden states
    # [b, n] the columns that ran, more than planned if the call's memory widened it (None: all in order)
    columns: Tensor | None
    rerun: Tensor | None = None  # [b] the rows of the call that these are (None: all)
    counts: Tensor | None = None  # [b] which of these count (None: all)

    def by_place(self, length: int, extra: int) -> StatesByPlace:
        """The same by place, on a canvas of ``length`` columns. extra: queries at its end that belong to no column."""
        call, hidden, columns, candidates = self.call, self.hidden, self.columns, self.call.candidates
        if self.rerun is not None:
            candidates = self.rerun if candidates is None else candidates[self.rerun]
        if call.side_by_side is not None:
            hidden, columns = call.side_by_side.unpack(hidden), call.columns
        if columns is None:
            return candidates, hidden, None, self.counts
        columns = columns[:, : columns.shape[1] - extra]
        if call.masks is not None:
            columns = columns.masked_fill(~call.masks, length)
        place = columns.new_full((len(columns), length + 1), -1)
        order = torch.arange(columns.shape[1], device=columns.device).expand_as(columns)
        return candidates, hidden, place.scatter(1, columns, order)[:, :-1], self.counts


@dataclass(frozen=True)
class HiddenStates:
    """The hidden states of one forward of N candidates."""

    states: Tensor  # [T, D] of all query tokens, candidate after candidate
    first: Tensor  # [N] where a candidate's begin
    size: Tensor | int  # how many each candidate has: [N], or one number
    place: Tensor | None  # [N, L] where each column is among its candidate's (-1: nowhere; None: in order)
    width: int  # the most that any candidate has

    @staticmethod
    def of(runs: Sequence[CallStates], canvas: Canvas, extra: int) -> HiddenStates:
        """From the runs of a forward of candidates on ``canvas`` [N]; each counts where it ran last. extra: as in
        ``CallStates.by_place``."""
        columns, count = canvas.columns, len(canvas.row_id)
        calls = [run.by_place(len(columns), extra) for run in runs]
        width, (candidates, hidden, place, _) = max(hidden.shape[1] for _, hidden, *_ in calls), calls[0]
        if len(calls) == 1 and candidates is None:
            step = max(width, 1)  # no row may have computed anything
            first = torch.arange(0, count * step, step, device=columns.device)
            return HiddenStates(hidden.flatten(0, 1), first, width, place, width)
        everyone = torch.arange(count, device=columns.device)
        first, size = torch.zeros_like(everyone), torch.full_like(everyone, width)
        places, begin = columns.new_full((count, len(columns)), -1), 0
        for candidates, hidden, place, counts in calls:
            candidates, (rows, n) = everyone if candidates is None else candidates, hidden.shape[:2]
            new = begin + n * everyone[:rows], torch.full_like(candidates, n), columns if place is None else place
            if counts is not None:
                before = first[candidates], size[candidates], places[candidates]
                new = update_rows(counts, (*new[:2], new[2].expand(rows, -1)), before)
            first[candidates], size[candidates], places[candidates] = new
            begin += rows * n
        return HiddenStates(torch.cat([hidden.flatten(0, 1) for _, hidden, *_ in calls]), first, size, places, width)

    def led(self, leaders: Sequence[int]) -> HiddenStates:
        """The same where each candidate has those of its leader (empty: its own)."""
        if not leaders:
            return self
        at = torch.tensor(leaders, device=self.first.device)
        size = self.size if isinstance(self.size, int) else self.size[at]
        return replace(self, first=self.first[at], size=size, place=None if self.place is None else self.place[at])

    def take(self, at: Tensor) -> Tensor:
        """The states ``at`` [N, r] of each candidate, or of the first N: [N, r, D]."""
        return self.states[self.first[: len(at), None] + at]

    def last(self, count: int) -> Tensor:
        """The last ``count`` states of every candidate: [N, count, D]."""
        begin = self.first + self.size - count
        return self.states[begin[:, None] + torch.arange(count, device=begin.device)]
