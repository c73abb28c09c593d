"""How wide the tensors of a turn are: exactly, or as far as the host knows without asking the device.

Every part asks this object instead of the device, so that parts are written once for both. Exact shapes cost a few
copies from the device in every turn, which is free on a CPU. Bounded shapes cost none: their answers are upper bounds,
and the host synchronises only every ``check_every`` turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm.common.rowwise import T, update_rows


class Shapes:
    """What a part may ask. These answers are exact and copied from the device; ``Bounded`` overrides them. waits: some
    rows may wait in this turn, until the host sees that their block is full."""

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

    def after_forward(self) -> Shapes:
        """After one more forward of every row."""
        return self

    def unsynchronised(self) -> Shapes:
        """The shapes of a turn before which the host has not synchronised."""
        return self

    def synchronised(self, begin: Tensor, forwards: Tensor) -> Shapes:
        """The shapes of a turn before which the host synchronised, and read where blocks ``begin`` [B] and how many
        ``forwards`` [B] they have had."""
        return self

    def join(self, other: Shapes) -> Shapes:
        """The shapes of these rows and others, before the host synchronises."""
        return self


@dataclass(frozen=True)
class Bounded(Shapes):
    """What the host knows since it last synchronised. width: no row has more open columns. low: no block begins before
    this column. opening: which rows' blocks have had no forward yet. looked: the host synchronised just before this
    turn, so no row waits, and a further copy costs no pause."""

    width: int
    low: int = 0
    opening: tuple[bool, ...] = ()
    looked: bool = True

    @property
    def waits(self) -> bool:  # type: ignore[override]
        return not self.looked

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

    def after_forward(self) -> Shapes:
        return replace(self, opening=(False,) * len(self.opening))

    def unsynchronised(self) -> Shapes:
        return replace(self, looked=False)

    def synchronised(self, begin: Tensor, forwards: Tensor) -> Shapes:
        starts, counts = torch.stack([begin, forwards]).tolist()  # one copy from the device, not two
        return replace(self, low=min(starts), opening=tuple(count == 0 for count in counts), looked=True)

    def join(self, other: Shapes) -> Shapes:
        assert isinstance(other, Bounded), "rows of one batch have shapes of one kind"
        return replace(self, width=max(self.width, other.width))
