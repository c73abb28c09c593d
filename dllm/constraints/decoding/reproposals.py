"""Proposals that fit: where the model's own does not, the best of those that do, with an honest confidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from dllm.constraints.decoding.compiled import CompiledConstraint
from dllm.constraints.sets import ClassSet
from dllm.contract import Scores
from dllm.contract.constrained import Reproposer

CELLS_AT_ONCE = 256  # cells whose logits are read together: 130 MB of float32 for 126,000 ids


@dataclass(frozen=True)
class ConstrainedCell:
    """A scored mask of a candidate, and what may be there."""

    compiled: CompiledConstraint  # the constraint of its row
    candidate: int  # whose cell it is
    column: int  # of the canvas
    allowed: ClassSet  # the classes of tokens that may be there
    repropose: bool  # the proposal is made again
    token: int | None = None  # it is this one (None: the best of what may be there)


def proposed_anew(scores: Scores, cells: Sequence[ConstrainedCell]) -> tuple[Scores, Tensor]:
    """The scores [N] with proposals that fit, and where these are not the model's own [N, L]."""
    assert scores.repropose is not None, "the forward offers its logits to rows under constraints"
    values = {"token": scores.token, "confidence": scores.confidence, **scores.statistics}
    parts = list(chunks([cell for cell in cells if cell.repropose]))
    if parts:
        values = {name: value.clone() for name, value in values.items()}
    for part in parts:
        row, column = cell_places(part, scores.token.device)
        for name, new in repropose(scores.repropose, part, row, column, scores.token[row, column]).items():
            values[name][row, column] = torch.where(new.isnan(), values[name][row, column], new).to(values[name].dtype)
    other = values["token"] != scores.token
    token, confidence = values.pop("token"), values.pop("confidence")
    return replace(scores, token=token, confidence=confidence, statistics=values), other


def repropose(
    again: Reproposer, cells: Sequence[ConstrainedCell], row: Tensor, column: Tensor, own: Tensor
) -> dict[str, Tensor]:
    """Proposals and statistics [k] of cells of one constraint, float64; nan where the model's ``own`` [k] stay."""
    compiled, logits = cells[0].compiled, again.logits(row, column)
    allowed = compiled.ids([cell.allowed for cell in cells], logits.device, logits.shape[-1])
    if cells[0].token is None:
        token = again.pick(row, column, logits, allowed)
    else:
        token = torch.tensor([cell.token for cell in cells]).to(own)
    statistics = again.statistics(logits, row, token, allowed, compiled.renormalised)
    stays = (token == own) & (not compiled.renormalised)
    out = {
        name: value.double().masked_fill(stays, torch.nan) for name, value in ({"token": token} | statistics).items()
    }
    if "drawn" in statistics:  # no draw of a single position, where all of them are drawn together
        alone = cells[0].token is None
        out["drawn"] = (
            statistics["drawn"] if alone else statistics["drawn"].masked_fill(statistics["drawn"] != 0, torch.inf)
        )
    return out


def banned(scores: Scores, cells: Sequence[ConstrainedCell]) -> Scores:
    """The scores with -inf for what does not fit, in all logits that samplers read."""
    assert scores.repropose is not None, "the forward offers its logits to rows under constraints"
    out = partial(disallowed, cells, vocab=scores.repropose.vocab)
    return replace(
        scores, readings={readout: readout.without(reading, out) for readout, reading in scores.readings.items()}
    )


def disallowed(cells: Sequence[ConstrainedCell], columns: Tensor, vocab: int) -> Tensor:
    """Which ids fit nowhere [N, n, V], at ``columns`` [N, n]."""
    out = torch.zeros(*columns.shape, vocab, dtype=torch.bool, device=columns.device)
    for part in chunks(cells):
        row, column = cell_places(part, columns.device)
        at = (columns[row] == column[:, None]).long().argmax(1)
        out[row, at] = ~part[0].compiled.ids([cell.allowed for cell in part], columns.device, vocab)
    return out


def chunks(cells: Sequence[ConstrainedCell]) -> Iterator[list[ConstrainedCell]]:
    """The cells in parts of one language and one way to propose, across rows, of at most CELLS_AT_ONCE."""

    def kind(cell: ConstrainedCell) -> tuple[int, bool, bool]:
        return id(cell.compiled.language), cell.compiled.renormalised, cell.token is None

    for _, group in groupby(cells, key=kind):
        same = list(group)
        yield from (same[at : at + CELLS_AT_ONCE] for at in range(0, len(same), CELLS_AT_ONCE))


def cell_places(cells: Sequence[ConstrainedCell], device: torch.device) -> tuple[Tensor, Tensor]:
    """Candidate and column [k] of each cell."""
    both = torch.tensor([(cell.candidate, cell.column) for cell in cells]).to(device)
    return both[:, 0], both[:, 1]
