"""How wide the tensors of a turn are: exactly, or as far as the host knows without waiting for the device.

Every part asks this object instead of the device, so that parts are written once for both. Exact shapes cost a few
copies from the device in every turn, which is free on a CPU. Bounded shapes cost none: their answers are upper bounds.
After every turn the device reports some numbers of each row, and the host reads them so many turns later, when they
have long arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm.common.rowwise import T, update_rows


class Shapes:
    """What a part may ask. These answers are exact and copied from the device; ``Bounded`` overrides them.

    lag: how many turns after its turn a report is read. hold: how many turns a row waits when a block of it has opened.
    waits: some rows may wait in a turn, because they are held, or done and still in the batch.
    """

    lag = hold = 0
    waits = False

    def any(self, mask: Tensor) -> bool:
        """Whether any entry is set, or may be."""
        return bool(mask.any())

    def all(self, mask: Tensor) -> bool:
        """Whether the host knows that all entries are set."""
        return bool(mask.all())

    def bounds(self, known: Callable[[Bounded], tuple[int, ...]]) -> tuple[int, ...]:
        """Bounds that the host computes from what it knows; empty if shapes are exact."""
        return ()

    def widths(self, mask: Tensor, bounds: Sequence[int]) -> Sequence[int]:
        """Set entries of each row of ``mask`` [B, L], or the ``bounds`` that no row exceeds."""
        return mask.sum(1).tolist()  # type: ignore[no-any-return]

    def reach(self, mask: Tensor) -> int:
        """Column after the last set entry of ``mask`` [B, L], or its width."""
        return int((mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax())

    def update(self, active: Tensor, new: T, old: T) -> T:
        """``new`` in the rows ``active`` [B], ``old`` in those that wait."""
        return update_rows(active, new, old) if self.waits else new

    def started(self, width: int, begin: Tensor) -> Shapes:
        """The shapes of rows whose first blocks begin at ``begin`` [B]; no row will have more than ``width`` open
        columns."""
        return self

    def after_forward(self) -> Shapes:
        """After one more forward of every row."""
        return self

    def told(self, report: Sequence[Sequence[int] | None]) -> Shapes:
        """After the host has read a report. None: the row joined later."""
        return self

    def select(self, rows: Sequence[int]) -> Shapes:
        """The shapes of some of the rows."""
        return self

    def join(self, other: Shapes) -> Shapes:
        """The shapes of these rows, then those of others."""
        return self


@dataclass(frozen=True)
class Known:
    """What the host knows of a row from a report ``age`` turns old.

    begin: no block begins before this column. opening: the coming forward is the first of its block. acted: how many
    forwards it had had; counted: what the cache's policy counted in the last of them (``Session.counts``).
    """

    begin: int
    opening: bool = True
    acted: int = 0
    counted: int = 0
    age: int = 0

    @staticmethod
    def of(report: Sequence[int], age: int) -> Known:
        """From what a row reports: whether it is done, begin, whether a block of it opened just then, acted, counted.
        """
        _, begin, opened, acted, counted = report
        return Known(begin, bool(opened), acted, counted, age)


@dataclass(frozen=True)
class Bounded(Shapes):
    """Shapes from what the host knows. width: no row has more open columns."""

    lag: int = 0  # type: ignore[misc]
    hold: int = 0  # type: ignore[misc]
    width: int = 0
    known: tuple[Known, ...] = ()
    waits = True

    @property
    def low(self) -> int:
        """No block begins before this column."""
        return min(row.begin for row in self.known)

    def any(self, mask: Tensor) -> bool:
        return True

    def all(self, mask: Tensor) -> bool:
        return False

    def bounds(self, known: Callable[[Bounded], tuple[int, ...]]) -> tuple[int, ...]:
        return known(self)

    def widths(self, mask: Tensor, bounds: Sequence[int]) -> Sequence[int]:
        return bounds

    def reach(self, mask: Tensor) -> int:
        return mask.shape[1]

    def started(self, width: int, begin: Tensor) -> Shapes:
        return replace(self, width=width, known=tuple(map(Known, begin.tolist())))

    def after_forward(self) -> Shapes:
        return replace(self, known=tuple(replace(row, opening=False, age=row.age + 1) for row in self.known))

    def told(self, report: Sequence[Sequence[int] | None]) -> Shapes:
        pairs = zip(self.known, report, strict=True)
        return replace(self, known=tuple(Known.of(new, self.lag) if new else old for old, new in pairs))

    def select(self, rows: Sequence[int]) -> Shapes:
        return replace(self, known=tuple(self.known[row] for row in rows))

    def join(self, other: Shapes) -> Shapes:
        assert isinstance(other, Bounded), "rows of one batch have shapes of one kind"
        return replace(self, width=max(self.width, other.width), known=self.known + other.known)
