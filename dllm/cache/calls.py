"""Which rows of a batch share a call of the network.

All rows of a call are as wide as its widest: one row that computes its whole canvas would make seven others, which
compute a block, eight times as wide. A call of its own for it costs another reading of the weights instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# A call costs as much as so many more rows in another one: on a GPU the weights of an 8B model are read in the time in
# which 200 to 300 rows are multiplied with them (H100: 989 TFLOP/s to 3.35 TB/s); on a CPU in that of 10 to 20.
ROWS_PER_CALL = {"cpu": 16, "cuda": 256}


def grouped(widths: Sequence[int], price: int) -> list[list[int]]:
    """Row numbers by call, such that rows (each as wide as its call) and ``price`` rows for every call are fewest.

    Rows without columns take part only where all are so. In an optimal choice, calls are intervals of the widths.
    """
    kinds = sorted({width for width in widths if width}, reverse=True)
    if len(kinds) < 2:
        return [[row for row, width in enumerate(widths) if width or not kinds]]
    count = [sum(width == kind for width in widths) for kind in kinds]
    best: list[tuple[int, int]] = [(0, 0)]  # of the first so many kinds: rows, and where their last call begins
    for end in range(1, len(kinds) + 1):
        best.append(min((best[at][0] + kinds[at] * sum(count[at:end]) + price, at) for at in range(end)))
    calls: list[list[int]] = []
    end = len(kinds)
    while end:
        at = best[end][1]
        calls.append([row for row, width in enumerate(widths) if kinds[end - 1] <= width <= kinds[at]])
        end = at
    return calls[::-1]


def rows_by_call(widths: Sequence[int], device: torch.device) -> list[tuple[Tensor | None, int]]:
    """The same with row numbers as tensors [b] (None: all rows), and each call's width."""
    found = grouped(widths, ROWS_PER_CALL.get(device.type, 256))
    if len(found) == 1 and len(found[0]) == len(widths):
        return [(None, max(widths))]
    return [(torch.tensor(rows, device=device), max(widths[row] for row in rows)) for rows in found]
