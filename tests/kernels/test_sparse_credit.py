"""Sparse credit in the interpreter: the dense definition, from a few slots."""

from __future__ import annotations

import pytest
import torch

from dllm.kernels.credit import reference
from dllm.kernels.row_statistics import reference as statistics
from dllm.kernels.slot_logits import reference as slot_logits_reference
from dllm.parts import slot_logits, sparse_credit
from tests.support.dense_credit import dense_credit

ROWS, VOCABULARY = 11, 9


@pytest.mark.parametrize(("beta", "gamma", "alpha"), [(0.7, 0.2, 3.0), (0.0, 0.0, 0.5), (1.0, 2.0, 4.0)])
def test_turn_after_turn_equal_to_the_dense_definition(beta: float, gamma: float, alpha: float) -> None:
    noise = torch.Generator().manual_seed(2)
    ids, credit = torch.zeros(ROWS, 16, dtype=torch.int64), torch.zeros(ROWS, 16, dtype=torch.float64)
    dense = torch.zeros(1, ROWS, VOCABULARY, dtype=torch.float64)
    parameters = [torch.full((ROWS,), value, dtype=torch.float64) for value in (beta, gamma, alpha)]
    changed = 0
    base = torch.randn(ROWS, VOCABULARY, generator=noise, dtype=torch.float64)
    for _ in range(9):  # logits that wander, so that old favourites win, lose and come back
        z = base + 0.8 * torch.randn(ROWS, VOCABULARY, generator=noise, dtype=torch.float64)
        masked = torch.rand(ROWS, generator=noise) < 0.8
        row = statistics(z)
        given = (z.gather(1, ids), row["token"], row["first"], row["logsumexp"], ids, credit, masked, *parameters)
        expected = reference(*given)
        found = sparse_credit(*given, triton=True)
        token, confidence, dense = dense_credit(z[None], dense, masked[None], beta, gamma, alpha)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
        assert torch.equal(found[0][masked], token[0][masked])
        torch.testing.assert_close(found[1][masked], confidence[0][masked], rtol=1e-9, atol=1e-9)
        assert torch.equal(found[0][~masked], row["token"][~masked]), "what is not masked keeps its proposal"
        changed += int((found[0] != row["token"]).sum())
        ids, credit = found[2], found[3]
    assert (changed > 0) == (beta > 0), "credit overrules some proposals, but never without memory"


def test_the_poorest_slot_makes_room() -> None:
    ids = torch.tensor([[5, 6]])
    credit = torch.tensor([[0.9, 0.1]], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    z, first, live = torch.zeros(1, 2), one / 3, torch.tensor([True])
    found = sparse_credit(
        z, torch.tensor([4]), first, torch.log(3 * one), ids, credit, live, one, one, one, triton=True
    )
    assert found[2].tolist() == [[5, 4]]
    torch.testing.assert_close(found[3], torch.tensor([[0.9, 1 / 3]], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_slot_logits_are_rows_of_the_product(dtype: torch.dtype) -> None:
    noise = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(5, 1100, generator=noise).to(dtype), torch.randn(30, 1100, generator=noise).to(dtype)
    ids = torch.randint(0, 30, (5, 4), generator=noise)
    found = slot_logits(hidden, weight, ids, triton=True)
    torch.testing.assert_close(found, slot_logits_reference(hidden, weight, ids), rtol=2**-7, atol=1e-4)
    expected = (hidden.double() @ weight.double().T).gather(1, ids)
    torch.testing.assert_close(found.double(), expected, rtol=2**-7, atol=1e-4)


def test_no_rows() -> None:
    nothing, empty = torch.zeros(0, dtype=torch.float64), torch.zeros(0, 4, dtype=torch.float64)
    ids, none = torch.zeros(0, 4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    found = sparse_credit(empty, none, nothing, nothing, ids, empty, none.bool(), *[nothing] * 3, triton=True)
    assert [value.shape[0] for value in found] == [0] * 4
