"""The commits of a step that go together.

In order: what the cache's plan forces, then by falling confidence, then the lowest column. What the rule accepted by
its own judgement and does not go with the others stays masked. A schedule's commit, which judges no single position, is
made with the best token that goes with the others, so that a schedule takes its number of forwards. What a rule takes
back or replaces happens only in turns in which all its commits go together with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dllm.constraints.decoding.row import ConstrainedRow, Ints, rows_to_host
from dllm.constraints.row_sets import RowSets
from dllm.constraints.sets import MASK
from dllm.constraints.transitions import Bits
from dllm.contract import Step, View


@dataclass
class Decided:
    """A candidate's step on the host, each [L]; what is admitted changes it in place."""

    row: int  # of the batch
    commit: Bits  # positions that the sampler commits
    tokens: NDArray[np.int64]  # the proposals
    confidence: NDArray[np.float64]  # of the proposals
    judged: Bits  # commits that the rule accepted by itself
    forced: Bits  # by the cache's plan
    remask: Bits  # positions that go back to the mask
    edit: Bits  # committed positions that get another token
    other: Bits  # commits of a token that is not the step's
    waits: Bits  # commits and edits that were refused

    def order(self) -> list[int]:
        """The columns of its commits, in the order in which they are admitted."""
        columns = np.flatnonzero(self.commit)
        sure = self.confidence[columns]
        sure = np.where(np.isnan(sure), -np.inf, sure)
        return columns[np.lexsort((columns, -sure, ~self.forced[columns]))].tolist()


def admitted(rows: Sequence[ConstrainedRow | None], step: Step, view: View) -> tuple[Step, Tensor, Tensor]:
    """The step [N] with what goes together; where commits wait, and where they are made with another token [N, L]."""
    nothing, numbers, decided = view.canvas.no_positions, *copied_steps(rows, step, view)
    changed = [at for at, each in enumerate(decided) if not admit(rows, each, view)]
    if not changed:
        return step, step.owner.per_candidate(nothing), step.owner.per_candidate(nothing)
    at = torch.tensor([numbers[place] for place in changed], device=nothing.device)

    def sent(name: str, old: Tensor) -> Tensor:
        new = torch.from_numpy(np.stack([getattr(decided[place], name) for place in changed]))
        return old.index_copy(0, at, new.to(old.device, old.dtype))

    waits, other = (sent(name, step.owner.per_candidate(nothing)) for name in ("waits", "other"))
    commit, stop = sent("commit", step.commit), step.stop & ~step.owner.any(waits.any(1))
    accepted = None if step.accepted is None else step.accepted & commit & ~other
    confidence = step.confidence.masked_fill(other, torch.nan)
    if step.edit is not None:  # a full block that changes no more is held no longer
        edit = sent("edit", step.edit)
        given_up = step.owner.any((step.edit & ~edit).any(1)) & ~view.open.any(1) & ~step.owner.any(edit.any(1))
        step = step.but(edit=edit, keep_open=step.keep_open & ~given_up)
    step = step.but(
        commit=commit,
        tokens=sent("tokens", step.tokens),
        confidence=confidence,
        accepted=accepted,
        remask=sent("remask", step.remask),
        stop=stop,
    )
    return step, waits, other


def copied_steps(rows: Sequence[ConstrainedRow | None], step: Step, view: View) -> tuple[list[int], list[Decided]]:
    """The candidates of constrained rows by number, and their steps, in one copy from the device."""
    owners = list(range(len(rows))) if step.owner.is_single else step.owner.row.tolist()
    numbers = [number for number, row in enumerate(owners) if rows[row]]
    judged = torch.zeros_like(step.commit) if step.accepted is None else step.accepted
    edit = torch.zeros_like(step.commit) if step.edit is None else step.edit
    parts = (
        step.tokens,
        step.confidence,
        step.commit,
        judged,
        step.owner.per_candidate(view.forced_positions),
        step.remask,
        edit,
    )
    values = rows_to_host(torch.stack([part.double() for part in parts]).transpose(0, 1), numbers).swapaxes(0, 1)
    commit, *flags = values[2:] > 0
    other, waits = np.zeros((2, *commit.shape), bool)
    lines = zip(commit, values[0].astype(np.int64), values[1], *flags, other, waits, strict=True)
    out = [Decided(owners[number], *line) for number, line in zip(numbers, lines, strict=True)]
    return numbers, out


def admit(rows: Sequence[ConstrainedRow | None], step: Decided, view: View) -> bool:
    """Drop and replace commits of a candidate until they go together. Returns whether it was fine as it was."""
    row = rows[step.row]
    assert row is not None
    if not (step.commit.any() or step.edit.any()):
        return True
    sets, order = after_changes(row, step), step.order()
    fits = sets.admit([column - row.begin for column in order], step.tokens[order].tolist())
    if all(fits):
        return not step.waits.any()
    if step.remask.any() or step.edit.any():
        # It takes nothing back in a turn in which it loses a commit, so that masks grow fewer.
        step.commit &= masked(row, len(step.commit))
        refuse_edits(row, step, np.flatnonzero(step.edit))
        step.remask = np.zeros_like(step.remask)
        sets, order = row.sets[0], step.order()
        fits = sets.admit([column - row.begin for column in order], step.tokens[order].tolist())
    dropped = [column for column, stays in zip(order, fits, strict=True) if not stays]
    refused = [column for column in dropped if step.judged[column] and not step.forced[column]]
    step.commit[dropped], step.waits[refused] = False, True
    row.refused += len(refused)
    replace_commits(row, sets, step, [column for column in dropped if not step.waits[column]], view)
    if not step.commit.any():
        commit_surest(step, view)
    return False


def masked(row: ConstrainedRow, length: int) -> Bits:
    """The row's masks [L]."""
    out = np.zeros(length, bool)
    cells = row.sets[0].cells
    out[row.begin : row.begin + len(cells)] = cells == MASK
    return out


def after_changes(row: ConstrainedRow, step: Decided) -> RowSets:
    """The sets after what the step takes back or replaces, the surest first. Edits that leave no text are refused."""
    if not (step.remask.any() or step.edit.any()):
        return row.sets[0]
    sets, columns = row.sets[0].copy(), np.flatnonzero(step.remask) - row.begin
    sets.write(columns.tolist(), [MASK] * len(columns))
    edits = np.flatnonzero(step.edit)
    for column in edits[np.lexsort((edits, -step.confidence[edits]))].tolist():
        at = column - row.begin
        old = int(sets.cells[at])
        sets.write([at], [int(step.tokens[column])])
        if not sets.feasible():
            sets.write([at], [old])
            refuse_edits(row, step, [column])
    return sets


def refuse_edits(row: ConstrainedRow, step: Decided, columns: Sequence[int] | Ints) -> None:
    """The tokens at ``columns`` stay."""
    step.edit[columns], step.waits[columns] = False, True
    row.refused += len(columns)


def replace_commits(row: ConstrainedRow, sets: RowSets, step: Decided, columns: Sequence[int], view: View) -> None:
    """Commit the best tokens at ``columns`` that go with all other commits, one column after the other."""
    again = view.scores.repropose
    if not columns or again is None:
        return
    sets, stays = sets.copy(), np.flatnonzero(step.commit)
    sets.write((stays - row.begin).tolist(), step.tokens[stays].tolist())
    device = view.open.device
    for column in columns:
        at = torch.tensor([step.row], device=device), torch.tensor([column], device=device)
        logits = again.logits(*at)
        allowed = row.compiled.ids(sets.allowed([column - row.begin]), device, again.vocab)
        step.tokens[column] = int(again.pick(*at, logits, allowed))
        sets.write([column - row.begin], [int(step.tokens[column])])
    step.commit[columns] = step.other[columns] = True
    row.replaced += len(columns)


def commit_surest(step: Decided, view: View) -> None:
    """Commit the surest proposal: alone it always fits."""
    open_, scores = view.open[step.row], view.scores
    if bool(open_.any()):
        column = int(scores.confidence[step.row].masked_fill(~open_, -torch.inf).argmax())
        step.commit[column] = step.other[column] = True
        step.tokens[column] = int(scores.token[step.row, column])
