"""The columns that predict others, against a loop over all columns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dllm.parts import predictors


@pytest.mark.parametrize("shifts", [0, 1, "by column"])
def test_a_column_is_predicted_from_as_many_columns_before_as_the_model_shifts(shifts: int | str) -> None:
    """As ``ModelConfig.sources`` has it, without columns that are padding; the first column predicts itself."""
    draw, rows, length = torch.Generator().manual_seed(4), 6, 9
    positions = torch.rand(rows, length, generator=draw) < 0.5
    by_column = torch.randint(0, 2, (rows, length), generator=draw) if isinstance(shifts, str) else None
    valid = torch.arange(length) < torch.tensor([[9], [8], [7], [9], [5], [9]])
    canvas: Any = SimpleNamespace(masked=positions, valid=valid, start=None, columns=torch.arange(length))
    config: Any = SimpleNamespace(shifts=lambda masked, start: shifts if by_column is None else by_column)
    positions = positions & valid
    expected = torch.zeros(rows, length, dtype=torch.bool)
    for row, column in positions.nonzero().tolist():
        shift = int(shifts) if by_column is None else int(by_column[row, column])
        expected[row, max(0, column - shift)] = True
    assert torch.equal(predictors(positions, canvas, config), expected)
