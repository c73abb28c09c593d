"""Row statistics in the interpreter against the definition, and the definition against brute force."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dllm.kernels import row_statistics
from dllm.kernels.row_statistics import reference
from dllm.parts import ROW_STATISTICS, split_count


def close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert torch.equal(found["token"], expected["token"])
    for name in ROW_STATISTICS:
        torch.testing.assert_close(found[name], expected[name], rtol=tolerance, atol=tolerance, msg=name)


def logits(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (4 * torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))).to(dtype)


def test_the_definition_is_the_textbook_on_one_row() -> None:
    z = [0.3, -1.0, 2.5, 2.0, -torch.inf]
    p = sorted((math.exp(x) / sum(math.exp(y) for y in z) for x in z), reverse=True)
    found = reference(torch.tensor([z], dtype=torch.float64))
    assert found["token"].item() == 2
    for name, value in {
        "first": p[0],
        "second": p[1],
        "gap": 0.5,
        "entropy": -sum(x * math.log(x) for x in p if x),
        "logsumexp": math.log(sum(math.exp(x) for x in z)),
    }.items():
        assert found[name].item() == pytest.approx(value, rel=1e-12), name


@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (5, 37), (2, 3, 2047), (3, 2049), (1, 20001)], ids=str)
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    z = logits(*shape)
    close(row_statistics.row_statistics(z, triton=True), reference(z.double()), 2e-6)


def test_the_whole_vocabulary_of_llada() -> None:
    z = logits(2, 126464)
    z[1, 126463] = 40.0
    close(row_statistics.row_statistics(z, triton=True), reference(z.double()), 4e-6)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 2e-6), (torch.float16, 2e-6), (torch.float64, 1e-14)], ids=str
)
def test_other_dtypes_are_widened_before_any_arithmetic(dtype: torch.dtype, tolerance: float) -> None:
    z = logits(3, 3001, dtype=dtype)
    close(row_statistics.row_statistics(z, triton=True), reference(z.double()), tolerance)


def test_infinite_entries_dead_rows_and_rows_with_one_entry() -> None:
    z = logits(4, 5000)
    z[0, ::2] = -torch.inf
    z[1] = -torch.inf
    z[2] = -torch.inf
    z[2, 4321] = -3.0
    z[3, 5:4999] = -torch.inf
    found = row_statistics.row_statistics(z, triton=True)
    close(found, reference(z.double()), 2e-6)
    assert [found[name][1].item() for name in ("token", *ROW_STATISTICS)] == [0, 0, 0, 0, 0, -torch.inf]
    assert [found[name][2].item() for name in ("token", *ROW_STATISTICS)] == [4321, 1, 0, torch.inf, 0, -3]


def test_ties_go_to_the_lowest_id_within_and_across_splits() -> None:
    z = torch.zeros(4, 9000)
    z[0, [17, 18]] = 1.0
    z[1, [2048, 8999]] = 1.0
    z[2, [5000, 2047]] = 1.0
    found = row_statistics.row_statistics(z, triton=True)
    assert found["token"].tolist() == [17, 2048, 2047, 0]
    assert found["gap"].tolist() == [0.0] * 4


def test_rows_that_are_not_contiguous_and_no_rows_at_all() -> None:
    z = logits(50, 7).t()
    close(row_statistics.row_statistics(z, triton=True), reference(z.double()), 2e-6)
    wide = logits(3, 400)[:, 30:190]
    close(row_statistics.row_statistics(wide, triton=True), reference(wide.double()), 2e-6)
    assert all(value.shape == (0,) for value in row_statistics.row_statistics(wide[:0], triton=True).values())


def test_confidence_stays_precise_near_one() -> None:
    """1 - p1 = 2e-11 is lost in float32; r is kept apart from the largest entry, so it is not."""
    z = torch.full((1, 3000), -40.0)
    z[0, 5] = -8.0
    found = row_statistics.row_statistics(z, triton=True)["first"]
    assert 1 - found.item() == pytest.approx(1 - 1 / (1 + 2999 * math.exp(-32)), rel=1e-4)


def test_splits_cover_the_gpu_and_never_outnumber_the_blocks() -> None:
    assert split_count(1, 126464, 2048, 132) == 64
    assert split_count(32, 126464, 2048, 132) == 32
    assert split_count(10_000, 126464, 2048, 132) == 1
    assert split_count(1, 100, 2048, 132) == 1


def test_equal_rows_and_ties_over_lanes_tiles_and_splits_against_the_definition() -> None:
    """Lanes of 1,024, tiles of 4,096: the lowest id of a tie may be in any of them."""
    z = logits(9, 40_000)
    for row, at in enumerate([(0, 1), (1023, 1024), (8191, 8192), (5, 8197), (39_999, 3), (20_000, 19_999, 7)]):
        z[row, list(at)] = 30.0
    z[6], z[7] = -2.5, torch.nan
    z[8] = -torch.inf
    z[8, [1024, 9000]] = 1.0
    found, kept = row_statistics.row_statistics(z, triton=True), [0, 1, 2, 3, 4, 5, 6, 8]
    expected = reference(z[kept].double())
    assert found["token"][kept].tolist() == [0, 1023, 8191, 5, 3, 7, 0, 1024] == expected["token"].tolist()
    assert torch.equal(found["gap"][kept], expected["gap"]) and found["gap"][kept].tolist() == [0.0] * 8
    for name in ("first", "second"):
        torch.testing.assert_close(found[name][kept], expected[name], rtol=0, atol=1e-7)
    assert found["first"][7] == 0 and found["token"][7] == 0, "numbers that are none count as minus infinity"
