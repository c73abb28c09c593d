"""Batches as sets of rows: everything that belongs to a request is a tensor that leads with its row.

Only these functions select, join and update rows. They take tensors, and lists, dicts and dataclasses of tensors. Other
values (numbers, objects shared by all rows) stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Owner:
    """Which row each candidate belongs to. N candidates of B rows; most samplers have one for each row."""

    row: Tensor  # [N] of each candidate: ascending; every row occurs
    rows: int  # B

    @staticmethod
    def single(rows: int, device: torch.device) -> Owner:
        """One candidate for each of ``rows``."""
        return Owner(torch.arange(rows, device=device), rows)

    @property
    def is_single(self) -> bool:
        """Whether every row has one candidate (N = B), so that candidate and row are the same."""
        return self.row.shape[0] == self.rows

    @cached_property
    def first(self) -> Tensor:
        """Index of each row's first candidate [B]."""
        if self.is_single:
            return self.row
        change = torch.ones_like(self.row, dtype=torch.bool)
        change[1:] = self.row[1:] != self.row[:-1]
        return change.nonzero()[:, 0]

    def per_candidate(self, state: T) -> T:
        """Repeat what belongs to rows for each candidate: [B, ...] to [N, ...]."""
        return state if self.is_single else select(state, self.row)

    def per_row(self, state: T) -> T:
        """Select what belongs to each row's first candidate: [N, ...] to [B, ...]."""
        return state if self.is_single else select(state, self.first)

    def any(self, value: Tensor) -> Tensor:
        """Whether a boolean [N] holds for any candidate of each row [B]."""
        if self.is_single:
            return value
        counts = torch.zeros(self.rows, dtype=torch.int32, device=value.device)  # CUDA reduces no booleans
        return counts.index_add(0, self.row, value.int()) > 0

    def all(self, value: Tensor) -> Tensor:
        """Whether a boolean [N] holds for every candidate of each row [B]."""
        return value if self.is_single else ~self.any(~value)

    def sum(self, value: Tensor) -> Tensor:
        """The sum [B, ...] of a value [N, ...] over the candidates of each row."""
        return value if self.is_single else value.new_zeros(self.rows, *value.shape[1:]).index_add_(0, self.row, value)

    def table(self) -> tuple[Tensor, Tensor]:
        """Candidates of each row [B, K], padded with -1, and each candidate's place in its row [N]."""
        everyone = torch.arange(len(self.row), device=self.row.device)
        place = everyone - self.first[self.row]
        out = torch.full((self.rows, int(place.max()) + 1), -1, device=self.row.device)
        out[self.row, place] = everyone
        return out, place

    def select(self, rows: Tensor) -> tuple[Owner, Tensor]:
        """The owner of the candidates of some ``rows`` [b], ascending, and the index of those candidates [n]."""
        if self.is_single:
            return Owner.single(len(rows), rows.device), rows
        number = torch.full((self.rows,), -1, device=rows.device)
        number[rows] = torch.arange(len(rows), device=rows.device)
        stays = number[self.row] >= 0
        return Owner(number[self.row[stays]], len(rows)), stays.nonzero()[:, 0]

    def join(self, other: Owner) -> Owner:
        """The candidates of this batch, then those of another one."""
        return Owner(torch.cat([self.row, self.rows + other.row]), self.rows + other.rows)


class Rowwise:
    """A dataclass whose fields lead with the row, except those named in ``shared``, which all rows share."""

    shared: ClassVar[tuple[str, ...]] = ()


def each_tensor(change: Callable[..., Tensor], state: T, *others: T) -> T:
    """``state`` with ``change`` applied to every tensor, and to the tensors in the same place of ``others``."""
    if isinstance(state, Tensor):
        return change(state, *others)  # type: ignore[return-value]
    if isinstance(state, dict):
        names = [(name, *(other.get(name, value) for other in others)) for name, value in state.items()]  # type: ignore[attr-defined]
        return {name: each_tensor(change, state[name], *rest) for name, *rest in names}  # type: ignore[return-value]
    if isinstance(state, tuple | list):
        return type(state)(each_tensor(change, *entries) for entries in zip(state, *others, strict=True))  # type: ignore
    if is_dataclass(state) and not isinstance(state, type):
        shared = state.shared if isinstance(state, Rowwise) else ()
        changed: dict[str, Any] = {
            entry.name: each_tensor(change, *(getattr(part, entry.name) for part in (state, *others)))
            for entry in fields(state)
            if entry.name not in shared
        }
        return replace(state, **changed)
    return state


def select(state: T, rows: Tensor) -> T:
    """The given rows [b], in that order; a row may appear several times or not at all."""
    return each_tensor(lambda tensor: tensor[rows], state)


def select_or_all(state: T, rows: Tensor | None) -> T:
    """``select``; ``rows`` None: all of them, in order."""
    return state if rows is None else select(state, rows)


def join(state: T, *others: T) -> T:
    """Rows of one batch, then rows of others. Trailing dimensions grow to the largest one, padded with zeros after:
    what is after a row's own columns is never valid."""

    def joined(*parts: Tensor) -> Tensor:
        shape = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
        return torch.cat([padded(part, shape) for part in parts])

    return each_tensor(joined, state, *others)


def update_rows(rows: Tensor, new: T, old: T) -> T:
    """Per row: ``new`` where ``rows`` [B] holds, else ``old``. A tensor of ``new`` may have grown in its trailing
    dimensions; the old rows are padded with zeros."""

    def updated(now: Tensor, before: Tensor) -> Tensor:
        if now is before:
            return now
        return torch.where(rows.view(-1, *[1] * (now.dim() - 1)), now, padded(before, list(now.shape[1:])))

    return new if new is old else each_tensor(updated, new, old)


def padded(value: Tensor, shape: list[int]) -> Tensor:
    """Rows [B, ...] padded with zeros after to ``shape``, which counts every dimension but the first."""
    growth = [extent - now for extent, now in zip(shape, value.shape[1:], strict=True)]
    return F.pad(value, [side for extra in reversed(growth) for side in (0, extra)]) if any(growth) else value


def move(state: T, device: torch.device | str) -> T:
    """The same dataclass with every tensor on ``device``."""
    return replace(state, **{f.name: getattr(state, f.name).to(device) for f in fields(state)})  # type: ignore
