"""Residual add and RMSNorm in the interpreter."""

from __future__ import annotations

import pytest
import torch

from dllm.kernels.add_norm import KeepRows, reference
from dllm.parts import add_norm


@pytest.mark.parametrize("added", [True, False], ids=["sum", "alone"])
@pytest.mark.parametrize(
    ("dtype", "ulp"),
    [(torch.float32, 1e-6), (torch.bfloat16, 2**-7), (torch.float16, 2**-10), (torch.float64, 1e-15)],
    ids=str,
)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 100), (7, 128), (2, 3000), (0, 8)], ids=str)
def test_equals_the_definition(shape: tuple[int, ...], dtype: torch.dtype, ulp: float, added: bool) -> None:
    """The interpreter cuts to bfloat16 where torch rounds: the sum, the normal row and the product, an ulp each."""
    noise = torch.Generator().manual_seed(1)
    x, residual = (torch.randn(shape, generator=noise).to(dtype) for _ in range(2))
    gain = torch.randn(shape[-1], generator=noise).to(dtype)
    found = add_norm(x, residual if added else None, gain, 1e-6, triton=True)
    for one, other in zip(found, reference(x, residual if added else None, gain, 1e-6), strict=True):
        torch.testing.assert_close(one, other, rtol=4 * ulp, atol=4 * ulp)


@pytest.mark.parametrize("added", [True, False], ids=["sum", "alone"])
def test_what_enters_is_kept_at_its_places(added: bool) -> None:
    noise = torch.Generator().manual_seed(2)
    x, residual = (torch.randn(2, 3, 100, generator=noise) for _ in range(2))
    places, total = torch.tensor([7, 0, 3, 8, 1, 5]), x + residual if added else x
    for triton in (True, False):
        kept = torch.full((9, 100), -7.0)
        add_norm(x, residual if added else None, torch.ones(100), 1e-6, KeepRows(kept, places), triton)
        assert torch.equal(kept[places], total.flatten(0, 1)) and (kept[[2, 4, 6]] == -7).all()


def test_rows_of_zeros_stay_zeros() -> None:
    x = torch.zeros(3, 64)
    total, out = add_norm(x, x, torch.ones(64), 1e-6, triton=True)
    assert not total.any()
    assert not out.any()
