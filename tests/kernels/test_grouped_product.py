"""Products by group in the interpreter."""

from __future__ import annotations

import pytest
import torch

from dllm.kernels.grouped_product import reference
from dllm.parts import grouped_product

COUNTS = {  # rows of each group
    "some empty": [0, 3, 0, 1, 20, 0],
    "one group": [7],
    "the last alone": [0, 0, 5],
    "many": [1] * 9 + [40],
    "none": [0, 0],
}


@pytest.mark.parametrize("case", COUNTS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2**-7), (torch.float64, 1e-13)], ids=str
)
def test_equals_the_definition(case: str, dtype: torch.dtype, tolerance: float) -> None:
    counts, noise = torch.tensor(COUNTS[case]), torch.Generator().manual_seed(1)
    rows = torch.randn(int(counts.sum()), 70, generator=noise).to(dtype)
    weight = torch.randn(len(counts), 150, 70, generator=noise).to(dtype) / 8
    ends = counts.cumsum(0)
    found, expected = grouped_product(rows, weight, ends, triton=True), reference(rows, weight, ends)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_each_row_meets_the_matrix_of_its_group() -> None:
    """Group g multiplies by g: brute force."""
    group = torch.tensor([0, 0, 2, 2, 2, 3])
    weight = torch.eye(16) * torch.arange(4.0)[:, None, None]
    ends = torch.searchsorted(group, torch.arange(4), right=True)
    rows = torch.randn(6, 16)
    for triton in (False, True):
        torch.testing.assert_close(grouped_product(rows, weight, ends, triton), rows * group[:, None])
