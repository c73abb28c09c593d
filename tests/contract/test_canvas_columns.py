"""Columns of set entries, against Python's own list of them."""

from __future__ import annotations

import pytest
import torch

from dllm.parts import packed


@pytest.mark.parametrize(("rows", "length", "most"), [(1, 1, 1), (3, 37, 5), (4, 64, 64), (2, 9, 0)], ids=str)
def test_packed_columns_are_those_that_are_set(rows: int, length: int, most: int) -> None:
    noise = torch.Generator().manual_seed(rows + length)
    where = torch.zeros(rows, length, dtype=torch.bool)
    for row in range(rows):
        where[row, torch.randperm(length, generator=noise)[: max(0, most - row)]] = True
    for width in (None, most, min(most + 2, length)):
        found = packed(where, torch.arange(length), width)
        wide = most if width is None else width
        listed = [[column for column in range(length) if row[column]] for row in where.tolist()]
        assert found.tolist() == [row + [length] * (wide - len(row)) for row in listed]
