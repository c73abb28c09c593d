"""What Elastic-Cache reads of attention, in the interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dllm.kernels import attention_scores as scores_file
from dllm.kernels import drift_sums as sums_file
from dllm.parts import attention_scores, drift_sums

SHAPES = {  # rows, buffer columns, heads, heads of keys, head size, window, watched, keys
    "one block of keys": (2, 40, 4, 4, 16, 3, 2, 37),
    "three blocks, shared heads": (3, 330, 6, 2, 20, 17, 18, 300),
    "nothing is watched": (1, 20, 2, 1, 8, 2, 0, 9),
}
DTYPES = [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 2e-6), (torch.float16, 2e-6)]


def drawn(shape: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries of all columns, keys in a wider buffer, the keys that count, and columns to watch."""
    rows, columns, heads, kv_heads, size, _, watched, keys = SHAPES[shape]
    noise = torch.Generator().manual_seed(keys)
    query = torch.randn(rows, columns, heads, size, generator=noise).to(dtype)
    buffer = torch.randn(rows, kv_heads, columns, size, generator=noise).to(dtype)
    count = torch.randint(1, keys + 1, (rows,), generator=noise).int()
    at = torch.randint(0, columns, (rows, watched), generator=noise)
    return query, buffer[:, :, :keys], count, at


@pytest.mark.daily(6)
@pytest.mark.parametrize(("dtype", "close"), DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_scores_equal_the_definition(shape: str, dtype: torch.dtype, close: float) -> None:
    query, keys, count, at = drawn(shape, dtype)
    width = SHAPES[shape][5]
    for asking, columns in ((query, at), (query[:, :width], None)):
        found = attention_scores(asking, columns, keys, count, triton=True)
        expected = scores_file.reference(asking, columns, keys, count)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=close, atol=20 * close)


@pytest.mark.parametrize("shape", SHAPES)
def test_scores_are_the_logarithms_of_attention_weights(shape: str) -> None:
    """Against PyTorch's fused attention over an identity as values, which gives the weights."""
    query, keys, count, at = drawn(shape, torch.float64)
    scores, sums = scores_file.reference(query, at, keys, count)
    asking = query[torch.arange(len(query))[:, None], at].transpose(1, 2)
    groups, mask = query.shape[2] // keys.shape[1], torch.arange(keys.shape[2]) < count[:, None]
    weights = torch.nn.functional.scaled_dot_product_attention(
        asking,
        keys.repeat_interleave(groups, 1),
        torch.eye(keys.shape[2]).double().expand(*asking.shape[:2], -1, -1),
        mask[:, None, None],
    )
    torch.testing.assert_close((scores - sums.logsumexp(-1, keepdim=True)).exp(), weights, rtol=1e-9, atol=1e-12)


@pytest.mark.daily(4)
@pytest.mark.parametrize("close", [1e-12, 1e-5], ids=["float64", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_equal_the_definition(shape: str, close: float) -> None:
    query, keys, count, at = drawn(shape, torch.float64 if close < 1e-9 else torch.float32)
    rows, width, watched = len(query), SHAPES[shape][5], at.shape[1]
    noise = torch.Generator().manual_seed(7)
    real, mean = torch.rand(rows, width, generator=noise) < 0.7, torch.rand(rows, watched, generator=noise).to(query)
    moved = query + torch.randn(query.shape, generator=noise).to(query) / 3
    new = scores_file.reference(moved[:, : width + watched], None, keys, count)
    old = scores_file.reference(query, at, keys, count) if watched else None
    found = drift_sums(new, old, real, mean, count, triton=True)
    for one, other in zip(found, sums_file.reference(new, old, real, mean, count), strict=True):
        torch.testing.assert_close(one, other, rtol=close, atol=close)


def test_sums_are_torchs_cosine_and_add_up_to_the_real_rows() -> None:
    query, keys, count, at = drawn("three blocks, shared heads", torch.float64)
    (rows, width), watched = (len(query), 17), at.shape[1]
    real, mean = torch.ones(rows, width, dtype=torch.bool), torch.full((rows, watched), 1 / watched).double()
    new = scores_file.reference(query[:, : width + watched], None, keys, count)
    old = scores_file.reference(query, at, keys, count)
    received, alike = sums_file.reference(new, old, real, mean, count)
    torch.testing.assert_close(received.sum(1), torch.full((rows,), 6.0 * width).double())
    before, after = (part[0].softmax(-1)[:, :, -watched:] for part in (old, new))
    cosine = torch.nn.functional.cosine_similarity(before, after, dim=1)
    expected = [one[:, :seen].mean() for one, seen in zip(cosine, count.tolist(), strict=True)]
    torch.testing.assert_close(alike.sum(1), torch.stack(expected))
    torch.testing.assert_close(drift_sums(old, old, real[:, :0], mean, count)[1].sum(1), torch.ones(rows).double())
