"""Which rows of a batch share a call of the network.

All rows of a call are padded to its widest. One row that computes its whole canvas can make seven others, which compute
a block, eight times as wide. In a call of its own it costs an attention of its own instead, or another reading of the
weights, if calls do not run as one stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

# A further call costs as much as this many rows more. Alone, it reads all weights again. For an 8B model that takes as
# long as multiplying 200 to 300 rows with them on a GPU (H100: 989 TFLOP/s to 3.35 TB/s), and 10 to 20 rows on a CPU.
ROWS_PER_CALL = {"cpu": 16, "cuda": 256}
# In a stream (``network.packed_calls``) it costs an attention of its own in every layer. On a CPU no padding is
# cheaper (measured: 3 M and 29 M parameters, 8 rows). On a GPU by arithmetic: four launches in each of 32 layers take
# 0.5 ms when recorded and 2 ms when not, and a row of an 8B model 27 us.
ROWS_PER_STREAMED = {"cpu": 0, "cuda": 64}


def row_groups(widths: Sequence[int], price: int) -> list[list[int]]:
    """Row numbers by call, at the least cost: the rows of all calls, padded to their widest, and ``price`` rows a call.

    Rows without columns are in no call, unless all rows are so. In an optimal choice, calls are intervals of widths.
    """
    kinds = sorted({width for width in widths if width}, reverse=True)
    if len(kinds) < 2:
        return [[row for row, width in enumerate(widths) if width or not kinds]]
    count = [sum(width == kind for width in widths) for kind in kinds]
    best: list[tuple[int, int]] = [(0, 0)]  # of the first that many kinds: rows, and where their last call begins
    for end in range(1, len(kinds) + 1):
        best.append(min((best[at][0] + kinds[at] * sum(count[at:end]) + price, at) for at in range(end)))
    calls: list[list[int]] = []
    end = len(kinds)
    while end:
        at = best[end][1]
        calls.append([row for row, width in enumerate(widths) if kinds[end - 1] <= width <= kinds[at]])
        end = at
    return calls[::-1]


def padded_widths(widths: Sequence[int], price: int) -> list[int]:
    """Each row's width as its call pads it; 0 for a row in no call."""
    call_widths = [0] * len(widths)
    for rows in row_groups(widths, price):
        for row in rows:
            call_widths[row] = max(widths[other] for other in rows)
    return call_widths


class RowNumbers:
    """Row numbers as tensors, each made once: making one copies from the host, which a turn must not do when it is
    recorded. streams: whether the calls of a forward run as one stream."""

    streams = True

    def __init__(self) -> None:
        self.made: dict[tuple[int, ...], Tensor] = {}

    def price(self, device: torch.device) -> int:
        """How many rows a further call costs."""
        prices = ROWS_PER_STREAMED if self.streams else ROWS_PER_CALL
        return prices.get(device.type, prices["cuda"])

    def __call__(self, rows: Sequence[int], device: torch.device) -> Tensor:
        """The rows [b]."""
        key = tuple(rows)
        if key not in self.made:
            self.made[key] = torch.tensor(key, device=device)
        return self.made[key]


@dataclass(frozen=True)
class Group:
    """Rows that share a call."""

    rows: Tensor | None  # [b] their numbers; None: all rows
    width: int  # columns that the widest of them computes
    # the same rows as ranges of neighbours; None: all rows, or they are known on the device alone
    ranges: tuple[tuple[int, int], ...] | None = None

    def among(self, order: Tensor | None) -> Group:
        """The call of the rows that are in such places of ``order`` [B] (None: places are rows)."""
        if order is None or self.rows is None:
            return self
        return Group(order[self.rows], self.width)


def rows_by_call(widths: Sequence[int], device: torch.device, numbers: RowNumbers) -> list[Group]:
    """The calls of ``row_groups``."""
    groups = row_groups(widths, numbers.price(device))
    if len(groups) == 1 and len(groups[0]) == len(widths):
        return [Group(None, max(widths))]
    return [Group(numbers(rows, device), max(widths[row] for row in rows), ranges_of(rows)) for rows in groups]


def ranges_of(rows: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as ranges of neighbours: the first one, and the one after the last."""
    breaks = [at for at in range(1, len(rows)) if rows[at] != rows[at - 1] + 1]
    return tuple((rows[first], rows[end - 1] + 1) for first, end in pairwise([0, *breaks, len(rows)]))
