"""The device computes what a CPU does. These two are the tests of a dry run."""

from __future__ import annotations

import torch
from place import DEVICE


def test_the_device_adds_and_multiplies() -> None:
    a = torch.arange(6.0).view(2, 3)
    assert torch.equal((a.to(DEVICE) @ a.T.to(DEVICE)).cpu(), a @ a.T)


def test_products_in_float32_are_not_rounded_to_tensorfloat() -> None:
    """Equal tokens in float32 need it: TensorFloat-32 keeps ten bits."""
    x = torch.full((256, 256), 1.0 + 2**-20, device=DEVICE)
    assert torch.equal(x @ torch.eye(256, device=DEVICE), x)
