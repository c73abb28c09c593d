"""Products in bfloat16: those of rounded factors, in the forward pass and in its gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from experiments.mini.products import ROWS, products_in


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.detach().bfloat16().double()


@pytest.mark.parametrize("shape", [(1,), (ROWS,), (3, 11)])
def test_factors_and_products_are_rounded_and_nothing_else(shape: tuple[int, ...]) -> None:
    """One part in 256 of each sum; rows that round up the number of rows leave no trace."""
    generator = torch.Generator().manual_seed(0)
    x, w, g = (torch.randn(*one, generator=generator) for one in ((*shape, 24), (40, 24), (*shape, 40)))
    x.requires_grad_()
    w.requires_grad_()
    with products_in(torch.bfloat16):
        y = F.linear(x, w)
    y.backward(g)
    assert x.grad is not None and w.grad is not None and y.dtype == x.grad.dtype == w.grad.dtype == torch.float32
    flat, back = rounded(x).reshape(-1, 24), rounded(g).reshape(-1, 40)
    wanted = (flat @ rounded(w).T).view(y.shape), (back @ rounded(w)).view(x.shape), back.T @ flat
    for found, exact in zip((y, x.grad, w.grad), wanted, strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-5)


def test_elsewhere_nothing_is_rounded() -> None:
    x, w, b = torch.randn(5, 24), torch.randn(40, 24), torch.randn(40)
    with products_in(torch.float32):
        assert torch.equal(F.linear(x, w), x @ w.T)
    with products_in(torch.bfloat16):
        assert torch.equal(F.linear(x, w, b), F.linear(x, w) + b) and torch.equal(x @ w.T, torch.mm(x, w.T))
    assert torch.equal(F.linear(x, w), x @ w.T)
