"""Rotation and the store into the cache rows in the interpreter."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch

from dllm.kernels.rope_scatter import reference
from dllm.parts import HeadNorms, Kernel, Projected, rope_scatter

CASES = {  # rows, n, heads, kv heads, head size, half of what rotates, buffer rows
    "plain": (2, 5, 6, 6, 16, 8, 9),
    "grouped, a part rotates": (1, 3, 7, 1, 20, 6, 4),
    "one token": (3, 1, 4, 2, 8, 4, 1),
}


@pytest.mark.daily(20)
@pytest.mark.parametrize(
    ("fused", "normed"),
    [(True, True), (True, False), (False, False)],
    ids=["one product, normed", "one product", "apart"],
)
@pytest.mark.parametrize("listed", [True, False], ids=["columns", "in order"])
@pytest.mark.parametrize("wide", [True, False], ids=["wide", "rounded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_definition(
    case: str, dtype: torch.dtype, wide: bool, listed: bool, fused: bool, normed: bool
) -> None:
    rows, n, heads, kv_heads, size, half, length = CASES[case]
    noise = torch.Generator().manual_seed(3)
    counts = (heads, kv_heads, kv_heads)
    query, key, value = (torch.randn(rows, n, count, size, generator=noise).to(dtype) for count in counts)
    if fused:  # parts of wider rows, as a product of q, k and v leaves them
        whole = torch.cat([one.flatten(2) for one in (query, key, value)], -1)
        parts = whole.split([count * size for count in counts], -1)
        query, key, value = (part.unflatten(-1, (count, size)) for part, count in zip(parts, counts, strict=True))
    angles = torch.randn(rows, n, 1, half, generator=noise).to(torch.promote_types(dtype, torch.float32))
    cos, sin = (torch.cat(halves, -1) for halves in ((angles.cos(), angles.cos()), (-angles.sin(), angles.sin())))
    columns = torch.stack([torch.randperm(length, generator=noise)[:n] for _ in range(rows)]) if listed else None
    if columns is not None:
        columns[0, 0] = length  # padding: rotated, but not stored
    ours, theirs = ([torch.full((rows, kv_heads, length, size), -7.0).to(dtype) for _ in "kv"] for _ in "ab")
    gains = [(1 + torch.randn(size, generator=noise) / 4).to(dtype) for _ in "qk"]
    norms = HeadNorms(*gains, 1e-6) if normed else None
    kept = [torch.full((rows, length + 2, heads, size), -7.0).to(dtype) if fused else None for _ in "ab"]
    found = rope_scatter(query, key, value, cos, sin, columns, *ours, wide, norms, kept[0], triton=True)
    expected = reference(query, key, value, cos, sin, columns, *theirs, wide, norms, kept[1])
    torch.testing.assert_close(*kept, rtol=2**-5 if dtype == torch.bfloat16 else 2**-9, atol=2**-5)
    # bfloat16: the interpreter cuts where torch rounds, up to three times in a row when not wide.
    ulp = 2**-5 if dtype == torch.bfloat16 else 2**-9 if dtype == torch.float16 else 1e-6
    torch.testing.assert_close(found, expected, rtol=ulp, atol=ulp)
    torch.testing.assert_close(ours[0], theirs[0], rtol=ulp, atol=ulp)
    assert torch.equal(ours[1], theirs[1])
    stored = (ours[1] != -7).any(-1).any(1).sum(1)
    assert stored.tolist() == [n - 1 if listed and row == 0 else n for row in range(rows)]


@pytest.mark.parametrize("case", CASES)
def test_rows_without_a_buffer_are_rotated_by_the_kernel_too(case: str) -> None:
    """A forward without a cache rotates in one launch, and sees what PyTorch's operations give."""
    rows, n, heads, kv_heads, size, half, _ = CASES[case]
    noise = torch.Generator().manual_seed(5)
    query, key, value = (torch.randn(rows, n, count, size, generator=noise) for count in (heads, kv_heads, kv_heads))
    angles = torch.randn(rows, n, 1, half, generator=noise)
    cos, sin = (torch.cat(halves, -1) for halves in ((angles.cos(), angles.cos()), (-angles.sin(), angles.sin())))
    launches, launch = list[object](), Kernel._launch

    def noted(kernel: Kernel, *args: Any, **options: Any) -> None:
        launches.append(kernel)
        launch(kernel, *args, **options)

    with patch.object(Kernel, "_launch", noted):
        found = Projected(query, key, value, (cos, sin), True, triton=True).rotated()
    expected = Projected(query, key, value, (cos, sin), True, triton=False).rotated()
    assert len(launches) == 1
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
