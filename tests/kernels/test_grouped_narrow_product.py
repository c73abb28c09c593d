"""Products by group with narrow weights in the interpreter, against each group's rounded weights in float64."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from dllm.kernels.grouped_narrow_product import grouped_narrow_product, reference
from dllm.kernels.narrow_product import narrowed
from tests.kernels.test_narrow_product import by_hand, noise

MATRICES = 3
COUNTS = {"some empty": [0, 3, 0, 1, 37, 0], "the last alone": [0, 0, 5], "many": [1] * 6 + [70], "none": [0, 0]}
WIDTHS = {8: (90, 704), 4: (96, 704)}  # 704, as in DiffusionGemma's experts, is no multiple of 128


@cache
def stacks(outputs: int, width: int, bits: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Three random matrices, narrowed one by one."""
    wide = (noise(MATRICES, outputs, width, seed=width) / width**0.5).to(dtype)
    steps, scales = zip(*(narrowed(one, bits) for one in wide), strict=True)
    return torch.stack(steps), torch.stack(scales)


@cache
def wide_stacks(outputs: int, width: int, bits: int, dtype: torch.dtype) -> list[Tensor]:
    """The same in float64, number by number."""
    pairs = zip(*stacks(outputs, width, bits, dtype), strict=True)
    return [torch.from_numpy(by_hand(*pair)) for pair in pairs]


@pytest.mark.parametrize("case", COUNTS)
@pytest.mark.parametrize(("bits", "width"), [(bits, width) for bits in (8, 4) for width in WIDTHS[bits]])
def test_equals_the_products_with_the_wide_weights(case: str, bits: int, width: int) -> None:
    counts = COUNTS[case]
    ends, matrix = torch.tensor(counts).cumsum(0), torch.arange(len(counts)) % MATRICES
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2**-7)):
        rows = noise(sum(counts), width, seed=1).to(dtype)
        wide, (weight, scale) = wide_stacks(70, width, bits, dtype), stacks(70, width, bits, dtype)
        parts = [part.double() @ wide[at % MATRICES].t() for at, part in enumerate(rows.split(counts))]
        for triton in (False, True):
            found = grouped_narrow_product(rows, weight[matrix], scale[matrix], ends, triton)
            assert found.shape == (sum(counts), 70) and found.dtype == dtype
            torch.testing.assert_close(found.double(), torch.cat(parts), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_does_not_depend_on_the_others_of_its_group(bits: int) -> None:
    rows, narrow = noise(30, 160, seed=2), stacks(40, 160, bits)
    whole = grouped_narrow_product(rows, *narrow, torch.tensor([4, 21, 30]), triton=True)
    some = torch.tensor([1, 4, 12, 20, 29])  # one of the first group, three of the second
    alone = grouped_narrow_product(rows[some], *narrow, torch.tensor([1, 4, 5]), triton=True)
    torch.testing.assert_close(whole[some], alone, rtol=1e-6, atol=1e-6)


def test_groups_without_rows_are_not_read() -> None:
    weight, scale = stacks(16, 128, 8)
    scale = scale * torch.tensor([torch.nan, 1, torch.nan])[:, None, None]
    found = grouped_narrow_product(noise(2, 128), weight, scale, torch.tensor([0, 2, 2]), triton=True)
    torch.testing.assert_close(found, reference(noise(2, 128), weight, scale, torch.tensor([0, 2, 2])))
