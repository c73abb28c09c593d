"""How wide the tensors of a turn are: exactly, or the bounds that the host knows without waiting for the device.

Every part asks this object instead of the device, so that parts are written once for both. Exact shapes cost a few
copies from the device in every turn, which is free on a CPU. Bounded shapes cost none: their answers are upper bounds.
After every turn the device reports some numbers of each row. A host that reads them at once (``lag`` 0) learns how wide
the coming forward is, because its plan is made at the end of the turn before. One that reads them turns later, when
they have long arrived, asks the cache for bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from dllm.common.rowwise import Owner, T, update_rows


@dataclass(frozen=True)
class Shapes:
    """What a part may ask. These answers are exact and copied from the device; ``Bounded`` overrides them."""

    # by row, the row whose forward is its own, too, so that only that one runs (empty: every row runs). In papers:
    # parallel sampling
    leaders: tuple[int, ...] = field(default=(), kw_only=True)
    lag: int = 0  # how many turns after its turn the host reads a report
    open_delay: int = 0  # turns that a row waits once a block of it has opened, until the host knows
    # the largest of all rows of each further number that they report (``Session.widths``), or more; empty: ask the
    # device
    most: tuple[int, ...] = field(default=(), kw_only=True)
    # [B] the rows that ``widths`` are of, so that turns in which other rows are wide share a recording (None: in order)
    order: Tensor | None = field(default=None, compare=False, kw_only=True)
    # by row, what they report besides widths (``CacheTraits.facts``); recordings do not rest on it. Empty: ask the
    # device
    facts: tuple[tuple[int, ...], ...] = field(default=(), compare=False, kw_only=True)
    bounded: ClassVar[bool] = False  # the host knows bounds alone, and asks the device for nothing

    @property
    def plans_ahead(self) -> bool:
        """Whether a forward is planned at the end of the turn before, so that rows report how wide it is."""
        return self.bounded and self.lag == 0

    @property
    def waits(self) -> bool:
        """Whether rows may wait in a turn: until the host knows of their new block, or done and still in the batch."""
        return self.lag > 0

    def any(self, mask: Tensor) -> bool:
        """Whether any entry is set, or may be."""
        return bool(mask.any())

    def all(self, mask: Tensor) -> bool:
        """Whether the host knows that all entries are set."""
        return not self.leaders and bool(mask.all())

    def widths(self, mask: Tensor, owner: Owner) -> Sequence[int]:
        """Set entries of each candidate of ``mask`` [N, L], or as many as it may have; 0 for one that is led."""
        return self.running(mask.sum(1).tolist())

    def running(self, widths: Sequence[int]) -> Sequence[int]:
        """The widths of the rows, 0 for those that are led."""
        if not self.leaders:
            return widths
        return [width * (row == leader) for row, (width, leader) in enumerate(zip(widths, self.leaders, strict=True))]

    def max_per_row(self, mask: Tensor, columns: int, in_blocks: bool) -> int:
        """The most set entries of any row of ``mask`` [N, L], which has at most ``columns``. in_blocks: they are in
        open blocks."""
        return int(mask.sum(1).max())

    def entries(self, columns: Tensor, length: int) -> Tensor | None:
        """Which of ``columns`` [N, r] are before ``length``, flat [k], where the host knows how many; None: all are, or
        may be."""
        found = (columns < length).flatten().nonzero()[:, 0]
        return None if found.shape[0] == columns.numel() else found

    def last_column(self, mask: Tensor) -> int:
        """Column after the last set entry of ``mask`` [B, L], or its width."""
        return int((mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax())

    def update(self, active: Tensor, new: T, old: T) -> T:
        """``new`` in the rows ``active`` [B], ``old`` in those that wait."""
        return update_rows(active, new, old) if self.waits else new

    def started(self, width: int) -> Shapes:
        """The shapes of rows that will have at most ``width`` open columns."""
        return self

    def twice(self) -> Shapes:
        """The shapes of the rows, then of the rows again."""
        return self

    def join(self, other: Shapes) -> Shapes:
        """The shapes of these rows and others, before their bounds are known."""
        return self


@dataclass(frozen=True)
class Bounded(Shapes):
    """Shapes that the host knows: a turn asks the device for nothing. In papers: static shapes."""

    width: int = 0  # no row has more open columns
    bounds: tuple[int, ...] = ()  # the most columns of each row that the forward under way computes
    bounded: ClassVar[bool] = True

    def any(self, mask: Tensor) -> bool:
        return True

    def all(self, mask: Tensor) -> bool:
        return False

    def widths(self, mask: Tensor, owner: Owner) -> Sequence[int]:
        return self.running(self.bounds) if owner.is_single else [self.bounds[row] for row in owner.row.tolist()]

    def max_per_row(self, mask: Tensor, columns: int, in_blocks: bool) -> int:
        return min(columns, self.width) if in_blocks else columns

    def entries(self, columns: Tensor, length: int) -> Tensor | None:
        return None

    def last_column(self, mask: Tensor) -> int:
        return mask.shape[1]

    def started(self, width: int) -> Shapes:
        return replace(self, width=width)

    def bounded_by(self, bounds: Sequence[int], most: Sequence[int] = ()) -> Bounded:
        """The shapes of the coming turn, in which each row computes at most this many columns, and further numbers are
        at most those."""
        return replace(self, bounds=tuple(bounds), most=tuple(most), order=None)

    def reported(self, widths: Sequence[Sequence[int]], length: int, facts: int) -> Bounded:
        """The shapes of the coming turn, from what each row reports of its plan on a canvas of ``length`` columns; the
        last numbers, ``facts`` in all, bound no shape."""
        first, *further = zip(*widths, strict=True)
        sizes, numbers = further[: len(further) - facts], further[len(further) - facts :]
        bounds, most = (bucket(width, length) for width in first), (bucket(max(some), length) for some in sizes)
        return replace(self, bounds=tuple(bounds), most=tuple(most), facts=tuple(numbers), order=None)

    def twice(self) -> Bounded:
        order = self.order
        doubled = None if order is None else torch.cat([order, order + len(order)])
        return replace(self, bounds=2 * self.bounds, order=doubled)

    def join(self, other: Shapes) -> Shapes:
        assert isinstance(other, Bounded), "rows of one batch have shapes of one kind"
        return replace(self, width=max(self.width, other.width), bounds=(), order=None)


def as_bounded(shapes: Shapes) -> Bounded:
    """Shapes of a turn that asks nothing."""
    assert isinstance(shapes, Bounded), "recorded turns ask nothing"
    return shapes


BUCKETS = ((128, 16), (512, 64))  # numbers up to the first are rounded up to multiples of the second
COARSE = 256  # larger ones to multiples of this


def bucket(width: int, length: int) -> int:
    """A width rounded up, so that shapes repeat: ``length`` at most, and 0 stays 0."""
    step = next((step for most, step in BUCKETS if width <= most), COARSE)
    return min(length, -(-width // step) * step)


def shapes_for(lag: int | None, waits_on_open: bool) -> Shapes:
    """Exact shapes (``lag`` None), or bounded ones, where the host learns ``lag`` turns late what a turn has filled.
    waits_on_open: a row whose block has opened then waits until the host knows."""
    return Shapes() if lag is None else Bounded(lag, lag if waits_on_open else 0)


@dataclass(frozen=True)
class HostView:
    """What the host knows of a row, from a report some turns old."""

    begin: int = 0  # no block begins before this column
    opening: bool = True  # the coming forward is the first of its block; papers: prefill of a block
    forwards: int = 0  # forwards that the row had had
    staleness: int = 0  # turns since the report
    counts: tuple[int, ...] = ()  # what the cache counted then (``Session.counts``)
    # what the row's plan says of the coming forward (``Session.widths``), if a host reads every report at once
    widths: tuple[int, ...] = ()

    @staticmethod
    def of(report: Sequence[int], age: int) -> HostView:
        """From what a row reports: the widths of its plan, or for a host that reads late the first column of its block,
        whether that opened just then, forwards, and what its cache counts."""
        if age == 0:
            return HostView(widths=tuple(report))
        begin, opened, forwards, *counts = report
        return HostView(begin, bool(opened), forwards, age, tuple(counts))

    @property
    def turn(self) -> int:
        """Forwards that the row has had before the coming one, where it never waits for the host."""
        return self.forwards + self.staleness

    def later(self) -> HostView:
        """The same after another turn."""
        return replace(self, opening=False, staleness=self.staleness + 1)
