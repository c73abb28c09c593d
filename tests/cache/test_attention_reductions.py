"""Elastic's reductions over attention rows, against torch and in closed form."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.cache.drift import attended, attention_received, attention_similarity
from dllm.models.attention import Visible, attend


def weights(*shape: int, seed: int = 0, hidden: slice = slice(0, 0)) -> Tensor:
    """Softmax rows [.., S], 0 at the ``hidden`` keys."""
    scores = 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    scores[..., hidden] = -torch.inf
    return scores.softmax(-1)


@pytest.mark.parametrize("axis", ["heads", "keys"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 5, 3, 37), (1, 4, 1, 300), (1, 32, 2, 65), (2, 4, 0, 9)], ids=str)
def test_similarity_is_torchs_cosine_over_visible_keys(shape: tuple[int, ...], axis: str) -> None:
    hidden = slice(3, 5) if shape[-1] > 5 else slice(0, 0)
    old, new = (weights(*shape, seed=seed, hidden=hidden) for seed in (0, 1))
    keys = torch.full((shape[0],), shape[-1] - len(range(shape[-1])[hidden]))
    found = attention_similarity(old, new, keys, axis)
    seen = [key for key in range(shape[-1]) if not hidden.start <= key < hidden.stop]
    apart = F.cosine_similarity(old[..., seen], new[..., seen], dim=1 if axis == "heads" else 3)
    torch.testing.assert_close(found, apart.mean(-1 if axis == "heads" else 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", ["heads", "keys"])
def test_the_same_rows_have_similarity_one(axis: str) -> None:
    same, keys = weights(1, 3, 2, 50, hidden=slice(40, 50)), torch.tensor([40])
    found = attention_similarity(same, same, keys, axis)
    torch.testing.assert_close(found, torch.ones(1, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 5, 3, 37), (1, 7, 10, 300), (3, 4, 0, 5)], ids=str)
def test_received_attention_is_a_sum_and_adds_up_to_the_real_rows(shape: tuple[int, ...]) -> None:
    rows, real = weights(*shape), torch.ones(shape[0], shape[2], dtype=torch.bool)
    if shape[2] > 2:
        real[:, 2] = False
    found = attention_received(rows, real)
    expected = torch.einsum("bhms,bm->bs", rows.double(), real.double()).float()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    live = shape[1] * int(real[0].sum())
    torch.testing.assert_close(found.sum(1), torch.full((shape[0],), float(live)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kv_heads", [6, 2])
@pytest.mark.parametrize("again", [False, True])
def test_weighed_once_or_twice_attention_is_the_same(again: bool, kv_heads: int) -> None:
    """Against the fused product and a softmax by hand."""
    make = torch.Generator().manual_seed(kv_heads)
    query = torch.randn(2, 4, 6, 8, generator=make)
    keys, values = (torch.randn(2, kv_heads, 30, 8, generator=make) for _ in range(2))
    visible, at = torch.arange(30).expand(2, -1) != 7, torch.tensor([[3, 0, 2], [1, 1, 3]])
    out, weights = attended(query, keys, values, Visible(visible), at if again else None)
    batch = torch.arange(2)[:, None]
    torch.testing.assert_close(out, attend(query, keys, values, Visible(visible)))
    wide = keys.repeat_interleave(6 // kv_heads, 1)
    scores = torch.einsum("bihd,bhjd->bhij", query[batch, at], wide) / 8**0.5
    expected = scores.masked_fill(~visible[:, None, None], -torch.inf).softmax(-1)
    torch.testing.assert_close(weights if again else weights[batch, :, at].transpose(1, 2), expected)
