"""Elastic's reductions over attention rows in the interpreter, and what they must give in closed form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dllm.kernels.drift import received, received_reference, similarity, similarity_reference


def scores(*shape: int) -> Tensor:
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("axis", ["heads", "keys"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 5, 3, 37), (1, 4, 1, 300), (1, 32, 2, 65), (2, 4, 0, 9)], ids=str)
def test_similarity_equals_the_definition(shape: tuple[int, ...], axis: str) -> None:
    old = scores(*shape)
    new = old + scores(*shape[::-1]).permute(3, 2, 1, 0)
    if shape[-1] > 5:
        old[..., 3:5], new[..., 3:5] = -torch.inf, -torch.inf  # hidden keys
        old[-1, :, -1:], new[-1, :, -1:] = -torch.inf, -torch.inf  # a padded row sees none
    found, expected = similarity(old, new, axis, triton=True), similarity_reference(old, new, axis)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", ["heads", "keys"])
def test_the_same_pattern_has_similarity_one_whatever_is_added_to_a_row(axis: str) -> None:
    old = scores(1, 3, 2, 50)
    found = similarity(old, old + torch.tensor([1.0, -2.0, 5.0]).view(3, 1, 1), axis, triton=True)
    torch.testing.assert_close(found, torch.ones(1, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 5, 3, 37), (1, 7, 10, 300), (3, 4, 0, 5)], ids=str)
def test_received_attention_equals_the_definition_and_adds_up_to_the_real_rows(shape: tuple[int, ...]) -> None:
    rows, real = scores(*shape), torch.ones(shape[0], shape[2], dtype=torch.bool)
    if shape[2] > 2:
        rows[:, :, 1] = -torch.inf
        real[:, 2] = False
    found = received(rows, real, triton=True)
    torch.testing.assert_close(found, received_reference(rows, real), rtol=1e-5, atol=1e-6)
    live = shape[1] * (shape[2] - 2 if shape[2] > 2 else shape[2])
    torch.testing.assert_close(found.sum(1), torch.full((shape[0],), float(live)), rtol=1e-4, atol=1e-4)
