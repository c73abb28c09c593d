"""Products of few rows in the interpreter, against float64."""

from __future__ import annotations

import pytest
import torch

from dllm.kernels.skinny_product import SKINNY_ROWS, skinny_product


@pytest.mark.parametrize("rows", [0, 1, 17, 33, SKINNY_ROWS])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2**-7)], ids=str)
def test_equals_the_product_in_float64(rows: int, dtype: torch.dtype, tolerance: float) -> None:
    dice = torch.Generator().manual_seed(rows)
    x, weight = (torch.randn(count, 200, generator=dice).to(dtype) for count in (rows, 70))
    found, expected = skinny_product(x, weight, True), x.double() @ weight.double().T
    assert found.dtype == dtype and found.shape == (rows, 70)
    assert torch.allclose(found.double(), expected, rtol=tolerance, atol=tolerance * 8)
