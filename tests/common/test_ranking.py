"""Choosing by a score: ties go to the lowest position."""

from __future__ import annotations

import pytest
import torch

from dllm.common.ranking import few_largest


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
