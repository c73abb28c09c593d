"""Head and row statistics without logits, in the interpreter, against the definition."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from dllm.kernels import head_statistics as module
from dllm.kernels.head_statistics import reference
from dllm.parts import ROW_STATISTICS, LaunchConfig, chunked_head, fused_head, head_statistics, logits_of


def rows(count: int, width: int, vocabulary: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(count + width)
    return (
        torch.randn(count, width, generator=noise).to(dtype),
        torch.randn(vocabulary, width, generator=noise).to(dtype) * 0.5,
    )


def close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    clear = expected["gap"] > 2 * tolerance
    assert torch.equal(found["token"][clear], expected["token"][clear])
    for name in ROW_STATISTICS:
        torch.testing.assert_close(found[name], expected[name], rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("shape", [(1, 16, 9), (3, 40, 1000), (20, 130, 517), (37, 64, 128), (70, 33, 300)], ids=str)
def test_odd_shapes_and_every_shipped_tile(shape: tuple[int, int, int]) -> None:
    hidden, weight = rows(*shape)
    close(fused_head(hidden, weight), reference(hidden, weight), 1e-5)


def test_the_whole_vocabulary_of_llada(monkeypatch: pytest.MonkeyPatch) -> None:
    """In wider tiles than are shipped: the interpreter takes milliseconds for each, whatever its size."""
    monkeypatch.setitem(module.CONFIGS, 16, LaunchConfig({"BLOCK_R": 16, "BLOCK_V": 2048, "BLOCK_D": 16}))
    hidden, weight = rows(2, 16, 126464)
    close(fused_head(hidden, weight), reference(hidden, weight), 1e-5)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float16, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 0.1)], ids=str
)
def test_dtypes(dtype: torch.dtype, tolerance: float) -> None:
    """bfloat16 logits round to 2^-8 of their size, and the interpreter cuts where torch rounds to the nearest."""
    hidden, weight = rows(5, 48, 700, dtype)
    close(fused_head(hidden, weight), reference(hidden, weight), tolerance)


def test_banned_ids_and_the_scale_of_the_logits() -> None:
    hidden, weight = rows(6, 24, 400)
    top = int(reference(hidden, weight)["token"][0])
    found = fused_head(hidden, weight, (top, 399), 0.25)
    assert not torch.isin(found["token"], torch.tensor([top, 399])).any()
    close(found, reference(hidden, weight, (top, 399), 0.25), 1e-5)


def test_more_banned_ids_than_the_kernel_takes_are_left_to_the_plain_product() -> None:
    hidden, weight = rows(6, 24, 400)
    banned = tuple(reference(hidden, weight)["token"].tolist())
    found = head_statistics(hidden, partial(logits_of, weight=weight, banned=banned), weight, banned, triton=True)
    assert not torch.isin(found["token"], torch.tensor(banned)).any()
    close(found, reference(hidden, weight, banned), 1e-5)


def test_ties_and_no_rows() -> None:
    hidden, weight = rows(4, 16, 300)
    weight[200:] = weight[:100]
    found = fused_head(hidden, weight)
    assert (found["token"] < 200).all()
    assert fused_head(hidden[:0], weight)["token"].shape == (0,)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight = rows(11, 8, 20)
    monkeypatch.setattr(module, "CHUNK_ROWS", 4)
    expected = reference(hidden, weight)
    product = partial(logits_of, weight=weight)
    close(chunked_head(hidden, product), expected, 1e-6)
    close(chunked_head(hidden, product, triton=True), expected, 1e-5)


@pytest.mark.parametrize("triton", [True, False], ids=["triton", "torch"])
@pytest.mark.parametrize("plain", [True, False], ids=["weight", "no weight"])
def test_only_what_is_wanted_and_the_logits_of_given_ids(triton: bool, plain: bool) -> None:
    hidden, weight = rows(5, 32, 90)
    expected, at = reference(hidden, weight), torch.tensor([3, 89, 0, 7, 7])
    product = partial(logits_of, weight=weight)
    given, wanted = weight if plain else None, frozenset({"first"})
    found = head_statistics(hidden, product, given, wanted=wanted, at=at, triton=triton)
    assert found.keys() == {"token", "first", "logit"}
    torch.testing.assert_close(found["first"], expected["first"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found["logit"], product(hidden)[range(5), at].double(), rtol=1e-5, atol=1e-5)


def test_the_number_of_rows_chooses_the_way_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopwatch did, so that two ranks could round differently."""
    ways: list[tuple[str, int]] = []
    for name in ("fused_head", "chunked_head"):
        monkeypatch.setattr(module, name, lambda h, *rest, name=name: ways.append((name, len(h))) or {})
    hidden, weight = rows(33, 16, 40)
    for count in (1, 32, 33):
        head_statistics(hidden[:count], partial(logits_of, weight=weight), weight, triton=True)
    assert ways == [("fused_head", 1), ("fused_head", 32), ("chunked_head", 33)]
