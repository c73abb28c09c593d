"""Proposals that go together: those of the best filling of all cells of a candidate that were scored.

The device finds the highest logit of each class of tokens, the host the best way through the automaton.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dllm.constraints.decoding.reproposals import ConstrainedCell, cell_places, chunks
from dllm.constraints.decoding.row import ConstrainedRow
from dllm.constraints.filling import Maxima
from dllm.constraints.row_sets import RowSets
from dllm.contract import Scores
from dllm.contract.constrained import Reproposer


def jointly(
    scores: Scores, sets: RowSets, begin: int, cells: Sequence[ConstrainedCell], own: Sequence[int]
) -> Sequence[ConstrainedCell]:
    """The cells of a candidate, ascending, with the ids of their best filling together: of all fillings of the row the
    one in which the numbers that draws compare have the largest sum. begin: the column of the row's first cell. own:
    what the model proposes.

    Where nothing that is likely enough (``top_p``, ``top_k``) goes together, each cell takes the best by itself.
    """
    best = sets.best_of([cell.column - begin for cell in cells], maxima(scores, cells))
    if best is None:
        return cells
    told = zip(cells, best.ids, own, strict=True)
    return [replace(cell, repropose=cell.repropose or token != old, token=token) for cell, token, old in told]


def maxima(scores: Scores, cells: Sequence[ConstrainedCell]) -> list[Maxima]:
    """The highest number of each class at each cell, and the lowest id that has it."""
    again = scores.repropose
    assert again is not None, "the forward offers its logits to rows under constraints"
    found: list[Maxima] = []
    for part in chunks(cells):
        compiled, (row, column) = part[0].compiled, cell_places(part, scores.token.device)
        logits = again.logits(row, column)
        allowed = compiled.ids([cell.allowed for cell in part], logits.device, again.vocab)
        numbers = again.compared(row, column, logits, allowed).double()
        classes = compiled.classes(logits.device, again.vocab)
        highest, ids = highest_of_classes(numbers, classes, compiled.language.end + 1)
        found += zip(highest.cpu().numpy(), ids.cpu().numpy(), strict=True)
    return found


def highest_of_classes(numbers: Tensor, classes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest of ``numbers`` [k, V] in each of ``count`` classes [V], -inf in one without ids, and the lowest id
    that has it (0: none), both [k, count]."""
    each, vocab = classes.expand_as(numbers), numbers.shape[1]
    highest = numbers.new_full((len(numbers), count), -torch.inf).scatter_reduce(1, each, numbers, "amax")
    wins = numbers == highest[:, classes]
    found = torch.arange(vocab, device=numbers.device).expand_as(each).masked_fill(~wins, vocab)
    ids = found.new_full(highest.shape, vocab).scatter_reduce(1, each, found, "amin")
    return highest, ids.masked_fill(ids == vocab, 0)


def at_its_likeliest(again: Reproposer | None) -> Reproposer:
    """The same logits, compared without noise: what is committed is not a draw."""
    assert again is not None, "the forward offers its logits to rows under constraints"
    return again.cold()


def filled_together(
    scores: Scores, sets: RowSets, row: ConstrainedRow, number: int, columns: Sequence[int]
) -> tuple[int, ...]:
    """The best filling of the ``columns`` of a candidate that are committed together: of those that leave a text, that
    of the largest sum of logits."""
    places = [column - row.begin for column in columns]
    cells = [
        ConstrainedCell(row.compiled, number, column, fits, False)
        for column, fits in zip(columns, sets.allowed(places), strict=True)
    ]
    best = sets.best_of(places, maxima(scores, cells))
    assert best is not None, "a row under a constraint always has a text"
    return best.ids
