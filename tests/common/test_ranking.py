"""Choosing by a score: ties go to the lowest position."""

from __future__ import annotations

import pytest
import torch

from dllm.parts import UserError, argmax_mask, few_largest, top_k_mask, within_budget


@pytest.mark.parametrize("length", [1, 5, 512, 1300])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_the_few_largest_are_those_of_a_stable_sort(length: int, count: int) -> None:
    noise = torch.Generator().manual_seed(length + count)
    for values in (torch.randint(0, 5, (4, 3, length), generator=noise), torch.randn(2, length, generator=noise)):
        values = values.double()
        before, (ordered, index) = values.clone(), values.sort(dim=-1, descending=True, stable=True)
        found = few_largest(values, count)
        assert torch.equal(found[0], ordered[..., :count])
        assert torch.equal(found[1], index[..., :count])
        assert torch.equal(values, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_are_not_ranked_by_narrow_numbers(dtype: torch.dtype) -> None:
    score, among = torch.rand(2, 5).to(dtype), torch.ones(2, 5, dtype=torch.bool)
    for choose in (
        argmax_mask,
        lambda a, b: top_k_mask(a, b, torch.ones(2)),
        lambda a, b: within_budget(a, b, a[:, 0]),
    ):
        with pytest.raises(UserError, match=r"float64, and this score is (float32|bfloat16)"):
            choose(score, among)
    assert argmax_mask(torch.tensor([[3, 5, 5]]), among[:1, :3]).tolist() == [[False, True, False]]
