"""Numbers in float64 of tensors that are too large to be widened at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

PIECE = 32  # rows of logits that are float64 at a time


def in_float64(found: Callable[..., Tensor], *values: Tensor) -> Tensor:
    """``found`` [n] of rows of ``values`` [B, W, ...] as float64: [B, W]. ``PIECE`` rows at a time, since a row of
    126,464 logits takes 1 MB, and the answer of a batch has thousands."""
    pieces = zip(*(one.flatten(0, 1).split(PIECE) for one in values), strict=True)
    wide = [found(*(one.double() if one.is_floating_point() else one for one in piece)) for piece in pieces]
    return torch.cat(wide).view(values[0].shape[:2])
