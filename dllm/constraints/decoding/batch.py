"""Rows under constraints in the loop: what is proposed fits, what is committed goes together, what is cut stays a text.

The sets live on the host. Ids and masks come down every turn; up goes what is not as the model and the rule would have
it. For the best filling of a whole block the device finds the highest logit of each class of tokens, the host the best
way through the automaton.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dllm.common.rowwise import Owner, update_rows
from dllm.constraints.decoding.admission import admitted
from dllm.constraints.decoding.reproposals import ConstrainedCell, banned, cell_places, chunks, proposed_anew
from dllm.constraints.decoding.row import ConstrainedRow, Ints, clock, rows_to_host
from dllm.constraints.filling import Maxima
from dllm.constraints.row_sets import RowSets
from dllm.contract import Scores, Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.constrained import ConstraintReport


@dataclass(frozen=True)
class Seen:
    """Candidate ``number`` of a constrained row, on the host."""

    number: int  # of the candidate
    row: ConstrainedRow  # the row that it belongs to
    sets: RowSets  # what may be in each of its cells
    masked: Ints  # cells that are masks
    proposals: list[Ints]  # which columns are scored, and what is proposed [L]
    hot: bool  # the row draws its proposals


@dataclass(frozen=True)
class ConstrainedBatch:
    """The constraint of each row of a batch."""

    rows: tuple[ConstrainedRow | None, ...]  # None where a row is free

    @property
    def whole(self) -> bool:
        """Whether rows are decided block by block: by rules of noise."""
        return any(row and row.compiled.whole for row in self.rows)

    @property
    def free(self) -> bool:
        """Whether no row is under a constraint."""
        return not any(self.rows)

    @staticmethod
    def none(rows: int) -> ConstrainedBatch:
        """A batch of free rows."""
        return ConstrainedBatch((None,) * rows)

    def select(self, rows: Sequence[int]) -> ConstrainedBatch:
        return ConstrainedBatch(tuple(self.rows[row] for row in rows))

    def join(self, other: ConstrainedBatch) -> ConstrainedBatch:
        return ConstrainedBatch(self.rows + other.rows)

    def propose(self, canvas: Canvas, owner: Owner, scores: Scores) -> tuple[Scores, Tensor]:
        """The scores of all candidates [N] with proposals that fit, and where these are not the model's own [N, L]."""
        if self.free or self.whole:  # what a draw shows is not text yet
            return scores, canvas.no_positions
        with clock(self._constrained()):
            candidates = list(self._seen(canvas, owner, scores))
            cells = [cell for candidate in candidates for cell in cells_of(candidate, scores)]
            scores, other = proposed_anew(banned(scores, cells), cells)
            counts = other.sum(1).tolist() if any(cell.repropose for cell in cells) else [0] * len(other)
            for candidate in candidates:
                candidate.row.corrected += counts[candidate.number]
        return scores, other

    def filter_commits(self, step: Step, view: View, tried: Owner, chosen: Tensor) -> tuple[Step, Tensor, Tensor]:
        """The step without commits that do not go together: which of them wait, and which are made with other tokens
        [N, L]. tried, chosen: the candidates that the forward ran on, and that each row goes on with [B]."""
        if self.free:
            nothing = step.owner.per_candidate(view.canvas.no_positions)
            return step, nothing, nothing
        with clock(self._constrained()):
            if self.whole:
                return self._filled(step, view)
            self._keep(tried, chosen)
            return admitted(self.rows, step, view)

    def _filled(self, step: Step, view: View) -> tuple[Step, Tensor, Tensor]:
        """The step of a rule that commits whole blocks, each with its best filling; nothing waits, and where tokens are
        others than the rule's [B, L]."""
        tokens, nothing = step.tokens, view.canvas.no_positions
        if not bool(step.commit.any()):
            return step, nothing, nothing
        assert view.scores.repropose is not None, "the forward offers its logits to rows under constraints"
        scores = replace(view.scores, repropose=view.scores.repropose.cold())  # what is committed is not a draw
        for seen in self._seen(view.canvas, view.owner, scores):
            columns = step.commit[seen.number].nonzero()[:, 0].tolist()
            if columns:
                filling = filled_together(scores, seen.sets, seen.row, seen.number, columns)
                at = torch.tensor(columns, device=tokens.device)
                tokens = tokens.index_put((at.new_tensor(seen.number), at), torch.tensor(filling).to(tokens))
                seen.row.replaced += int((tokens[seen.number] != step.tokens[seen.number]).sum())
        other = step.commit & (tokens != step.tokens)
        return step.but(tokens=tokens, confidence=step.confidence.masked_fill(other, torch.nan)), nothing, other

    def undo_invalid_cuts(self, before: Canvas, after: Canvas, owner: Owner) -> Canvas:
        """The candidates [N] after an end-of-text policy; as they were before it where it has left no text."""
        if self.free or after is before:
            return after
        fine = [True] * len(after.row_id)
        with clock(self._constrained()):
            for seen in self._seen(after, owner):
                fine[seen.number] = seen.sets.feasible()
                seen.row.restored += not fine[seen.number]
        return after if all(fine) else update_rows(torch.tensor(fine, device=after.start.device), after, before)

    def report(self, row: int) -> ConstraintReport | None:
        """What a row's constraint has done so far; None: the row is free."""
        constrained = self.rows[row]
        return None if constrained is None else constrained.report()

    def _constrained(self) -> list[ConstrainedRow]:
        return [row for row in self.rows if row]

    def _keep(self, tried: Owner, chosen: Tensor) -> None:
        """Go on with the chosen candidates."""
        if tried.is_single:
            return
        places = (chosen - tried.first).tolist()
        for row, place in zip(self.rows, places, strict=True):
            if row:
                row.keep(place)

    def _seen(self, canvas: Canvas, owner: Owner, scores: Scores | None = None) -> Iterator[Seen]:
        """The candidates of constrained rows, their sets brought up to date, in one copy from the device."""
        rows = list(range(len(self.rows))) if owner.is_single else owner.row.tolist()
        numbers = [number for number, row in enumerate(rows) if self.rows[row]]
        parts = [canvas.tokens, canvas.masked, *([] if scores is None else [scores.scored, scores.token])]
        ends = canvas.end[:, None], canvas.temperature[:, None] > 0
        lines = rows_to_host(torch.cat([*parts, *ends], 1), numbers)
        places: dict[int, int] = {}
        for number, line in zip(numbers, lines, strict=True):
            row = self.rows[rows[number]]
            assert row is not None
            place = places[rows[number]] = places.get(rows[number], -1) + 1
            tokens, masked, *more = line[:-2].reshape(len(parts), -1)
            sets = row.candidate(place)
            sets.set_cells(row.cells(tokens, masked, int(line[-2])))
            yield Seen(number, row, sets, masked, more, bool(line[-1]))


def cells_of(seen: Seen, scores: Scores) -> Sequence[ConstrainedCell]:
    """The scored masks of a candidate, with what may be there."""
    row, (is_scored, proposed_ids), begin = seen.row, seen.proposals, seen.row.begin
    end = begin + len(seen.sets.cells)
    columns = begin + np.flatnonzero(is_scored[begin:end] & seen.masked[begin:end])
    if not len(columns):
        return []
    allowed = seen.sets.allowed((columns - begin).tolist())
    # What is drawn from the likeliest ids depends on which of them fit, even where the free draw does; so does the
    # probability of every draw.
    narrow = scores.repropose is not None and scores.repropose.narrow
    always = row.compiled.renormalised or (seen.hot and (narrow or "drawn" in scores.statistics))
    own = proposed_ids[columns].tolist()
    symbols = [row.compiled.language.symbol(token) for token in own]
    cells = [
        ConstrainedCell(row.compiled, seen.number, column, fits, always or not fits.bits[symbol])
        for column, fits, symbol in zip(columns.tolist(), allowed, symbols, strict=True)
    ]
    return jointly(scores, seen.sets, begin, cells, own) if row.compiled.joint else cells


def jointly(
    scores: Scores, sets: RowSets, begin: int, cells: Sequence[ConstrainedCell], own: Sequence[int]
) -> Sequence[ConstrainedCell]:
    """The cells of a candidate, ascending, with the ids of the row's filling in which the numbers that draws compare
    have the largest sum; where no likely ids go together, each takes the best by itself. begin: the column of the row's
    first cell. own: what the model proposes."""
    best = sets.best_of([cell.column - begin for cell in cells], maxima(scores, cells))
    if best is None:
        return cells
    choices = zip(cells, best.ids, own, strict=True)
    return [replace(cell, repropose=cell.repropose or token != old, token=token) for cell, token, old in choices]


def maxima(scores: Scores, cells: Sequence[ConstrainedCell]) -> list[Maxima]:
    """The highest number of each class at each cell, and the lowest id that has it."""
    again = scores.repropose
    assert again is not None, "the forward offers its logits to rows under constraints"
    out: list[Maxima] = []
    for part in chunks(cells):
        compiled, (row, column) = part[0].compiled, cell_places(part, scores.token.device)
        logits = again.logits(row, column)
        allowed = compiled.ids([cell.allowed for cell in part], logits.device, again.vocab)
        numbers = again.compared(row, column, logits, allowed).double()
        classes = compiled.classes(logits.device, again.vocab)
        highest, ids = highest_of_classes(numbers, classes, compiled.language.end + 1)
        out += zip(highest.cpu().numpy(), ids.cpu().numpy(), strict=True)
    return out


def highest_of_classes(numbers: Tensor, classes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest of ``numbers`` [k, V] in each of ``count`` classes [V], -inf in one without ids, and the lowest id
    that has it (0: none), both [k, count]."""
    each, vocab = classes.expand_as(numbers), numbers.shape[1]
    highest = numbers.new_full((len(numbers), count), -torch.inf).scatter_reduce(1, each, numbers, "amax")
    wins = numbers == highest[:, classes]
    first = torch.arange(vocab, device=numbers.device).expand_as(each).masked_fill(~wins, vocab)
    ids = first.new_full(highest.shape, vocab).scatter_reduce(1, each, first, "amin")
    return highest, ids.masked_fill(ids == vocab, 0)


def filled_together(
    scores: Scores, sets: RowSets, row: ConstrainedRow, number: int, columns: Sequence[int]
) -> tuple[int, ...]:
    """The filling of ``columns``, committed together, that leaves a text and has the largest sum of logits."""
    places = [column - row.begin for column in columns]
    cells = [
        ConstrainedCell(row.compiled, number, column, fits, False)
        for column, fits in zip(columns, sets.allowed(places), strict=True)
    ]
    best = sets.best_of(places, maxima(scores, cells))
    assert best is not None, "a row under a constraint always has a text"
    return best.ids
