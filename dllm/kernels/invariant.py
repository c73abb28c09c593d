"""Products whose numbers do not depend on the batch: ``kernels=invariant``, on a CPU.

A library chooses how it adds up by the number of rows: with one row alone as a product of a vector, with 300 in other
blocks than with 8. The sums then differ in their last bit, and in bfloat16 that is often the bit that decides between
two tokens. Here every product has ``TILE`` rows: a row's sums are the same, whatever else is in the tile. So do
MLPs as a whole: PyTorch computes exponentials in vectors, and in another way what is left over at the end.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TILE = 32  # rows of a product: the queries of a block


def in_tiles(product: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """``product`` of rows [R, D], which maps each by itself, [R, ...]: of ``TILE`` rows in every call."""
    padded = F.pad(rows, (0, 0, 0, -len(rows) % TILE))
    return torch.cat([product(tile) for tile in padded.split(TILE)])[: len(rows)]


class Tiled(nn.Module):
    """A module that maps each row [..., in] by itself to [..., out], ``TILE`` rows at a time. ``weight`` is
    None so that nothing multiplies by it directly."""

    weight = None

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return in_tiles(self.module, x.reshape(-1, x.shape[-1])).unflatten(0, x.shape[:-1])


def tile(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> None:
    """Tile every module of these ``kinds`` in place, and none inside it: the model can no longer train or be saved."""
    for name, child in list(model.named_children()):
        if isinstance(child, kinds):
            setattr(model, name, Tiled(child))
        else:
            tile(child, kinds)
