"""One row under a constraint, as the loop carries it: the sets of its candidates, and what has been done to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dllm.constraints.decoding.compiled import CompiledConstraint
from dllm.constraints.row_sets import RowSets
from dllm.constraints.sets import MASK
from dllm.contract.constrained import ConstraintReport

Ints = NDArray[np.int64]


@dataclass(eq=False)
class ConstrainedRow:
    """A row under a constraint."""

    compiled: CompiledConstraint  # its constraint over the tokens of the vocabulary
    begin: int  # the column of its first cell
    sets: list[RowSets]  # of each candidate. The counts are those of ``ConstraintReport``
    corrected: int = 0  # proposals so far that were not the model's own
    refused: int = 0  # commits so far that waited
    replaced: int = 0  # commits so far of another token
    restored: int = 0  # cuts so far that were taken back
    seconds: float = 0.0  # of the host, shared with its neighbours

    def candidate(self, place: int) -> RowSets:
        """The sets of the row's candidate at this place. A new one is like the first."""
        while len(self.sets) <= place:
            self.sets.append(self.sets[0].copy())
        return self.sets[place]

    def keep(self, place: int) -> None:
        """Go on with the candidate at this place alone."""
        self.sets = [self.candidate(place)]

    def cells(self, tokens: Ints, masked: Ints, end: int) -> Ints:
        """The row's cells, of its tokens [L] and masks [L] and the column that decides no more."""
        part = slice(self.begin, end)
        return np.where(masked[part] != 0, MASK, tokens[part])

    def report(self) -> ConstraintReport:
        """What has been done to the row so far."""
        compiled, language = self.compiled, self.compiled.language
        return ConstraintReport(
            compiled.kind,
            language.tokens.states,
            language.end,
            language.min_tokens,
            compiled.language.seconds,
            self.seconds,
            self.corrected,
            self.refused,
            self.replaced,
            self.restored,
        )


def rows_to_host(parts: Tensor, numbers: Sequence[int]) -> NDArray[Any]:
    """Some of the rows of ``parts`` [N, ...], in one copy from the device."""
    if len(numbers) < len(parts):
        parts = parts[torch.tensor(numbers, device=parts.device)]
    return parts.cpu().numpy()


@contextmanager
def clock(rows: list[ConstrainedRow]) -> Iterator[None]:
    """Share the time of what happens inside between the rows."""
    began = perf_counter()
    yield
    for row in rows:
        row.seconds += (perf_counter() - began) / len(rows)
