"""Attention whose keys are split over programs, in the interpreter, against PyTorch's in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dllm.kernels.split_attention import MOST_SPLITS, split_attention, splits_of


@pytest.mark.parametrize("triton", [False, True], ids=["reference", "kernels"])
@pytest.mark.parametrize(("counts", "n", "heads", "dtype"), [
    ([201], 5, (2, 1), torch.bfloat16), ([201], 5, (2, 1), torch.float32), ([1, 200], 33, (1, 1), torch.float32),
], ids=str)  # fmt: skip
def test_equals_attention_over_the_keys_of_each_row(
    counts: list[int], n: int, heads: tuple[int, int], dtype: torch.dtype, triton: bool
) -> None:
    tolerance = 2e-6 if dtype == torch.float32 else 2e-2
    dice, (own, shared), rows, step = torch.Generator().manual_seed(n), heads, len(counts), 340
    query = torch.randn(rows * n, own, 16, generator=dice).to(dtype)
    # As a cache lays them out: all positions of a head after each other.
    key, value = (torch.randn(shared, rows * step, 16, generator=dice).to(dtype).transpose(0, 1) for _ in "kv")
    first = torch.arange(0, rows * step, step, dtype=torch.int32)
    count = torch.tensor(counts, dtype=torch.int32)
    found = split_attention(query, key, value, first, count, max(counts), triton)
    for row, size in enumerate(counts):
        keys, values = (one[row * step : row * step + size].double().transpose(0, 1) for one in (key, value))
        mine = query[row * n : (row + 1) * n].double().transpose(0, 1)
        expected = F.scaled_dot_product_attention(mine, keys, values, enable_gqa=own != shared).transpose(0, 1)
        assert torch.allclose(found[row * n : (row + 1) * n].double(), expected, rtol=tolerance, atol=tolerance)


def test_one_row_is_split_and_a_full_batch_is_not() -> None:
    assert splits_of(1, 32, 32) == 8 and splits_of(16, 32, 32) == 1 and splits_of(1, 4, 1) == MOST_SPLITS
