"""Embedding and head in fewer bits: rows, sums of rows and products of the rounded weights, however many there are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dllm.kernels import narrow_embedding, narrow_linear
from dllm.parts import NarrowEmbedding, NarrowHead, packs_by_64, widened_from

SHAPES = [(640, 128), (157, 96), (64, 32), (5, 32)]  # whole blocks of 64; others, which four bits fill up
BITS = pytest.mark.parametrize("bits", [8, 4])


def matrix(count: int, width: int) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count)).to(torch.bfloat16)


def rounded(weight: Tensor, bits: int) -> Tensor:
    """The nearest weights in float64: a scale per output; or 16 steps from the least to the largest of 32 columns."""
    groups = weight.double().view(len(weight), -1, 32 if bits == 4 else weight.shape[1])
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    if bits == 8:
        scale = (torch.maximum(high, -low) / 127).to(torch.bfloat16).double()
        return ((groups / scale).round() * scale).flatten(1)
    scale = ((high - low) / 15).to(torch.bfloat16).double()
    zero = (low + 8 * scale).to(torch.bfloat16).double()
    return (((groups - zero) / scale).round().clamp(-8, 7) * scale + zero).flatten(1)


@BITS
@pytest.mark.parametrize(("count", "width"), SHAPES)
def test_rows_are_the_rounded_weights(bits: int, count: int, width: int) -> None:
    weight = matrix(count, width)
    embedding, ids = NarrowEmbedding.of(weight, bits), torch.arange(count).flip(0)
    found = embedding(ids)
    assert found.dtype == torch.bfloat16 == embedding.dtype
    torch.testing.assert_close(found.double(), rounded(weight, bits)[ids], rtol=2**-8, atol=2**-12)
    assert embedding(ids[None, :0]).shape == (1, 0, width)
    for row in (0, count - 1, count // 2):
        assert torch.equal(embedding(ids[row]), found[row]), "a row does not depend on others"


@BITS
@pytest.mark.parametrize(("count", "width"), SHAPES)
def test_the_head_multiplies_with_them(bits: int, count: int, width: int) -> None:
    """Few rows and many, of any shape."""
    weight = matrix(count, width)
    head, expected = NarrowEmbedding.of(weight, bits).head(), rounded(weight, bits)
    assert head.weight is None, "nobody multiplies with it in another way"
    for shape in ((1, width), (2, 3, width), (widened_from(bits) + 2, width), (0, width)):
        x = matrix(7, width).repeat(7, 1)[: max(1, shape[0] * 3)].flatten()[: torch.Size(shape).numel()].view(shape)
        found = head(x)
        assert found.shape == (*shape[:-1], count)
        torch.testing.assert_close(found.double(), x.double() @ expected.t(), rtol=2**-6, atol=2**-4)


@BITS
@pytest.mark.parametrize(("count", "width"), SHAPES)
def test_sums_of_rows(bits: int, count: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By tiles, of which the last is not a whole one."""
    monkeypatch.setattr(narrow_embedding, "outputs_at_once", lambda width: 64)
    weight, shares = matrix(count, width), matrix(3, count).softmax(-1)
    found = NarrowEmbedding.of(weight, bits).mixed(shares)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), shares.double() @ rounded(weight, bits), rtol=2**-6, atol=2**-6)


@BITS
def test_one_matrix_serves_both(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes where this CPU's operators read the layout of files; else the head has its own, the rows stay."""
    embedding = NarrowEmbedding.of(matrix(128, 64), bits)
    head = embedding.head()
    assert (head.narrow is embedding.narrow) == (bits == 8 or packs_by_64()) and head.scale is embedding.scale
    monkeypatch.setattr(narrow_linear, "packs_by_64", lambda: False)
    other = NarrowEmbedding.of(matrix(128, 64), bits)
    assert torch.equal(other.narrow, embedding.narrow) and torch.equal(other.head().narrow, head.narrow)
    stored = other.head(as_stored=True)
    stored.place(triton=True)
    assert isinstance(stored, NarrowHead) and not stored.triton and torch.equal(stored.narrow, head.narrow)
