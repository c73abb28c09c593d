"""Embedding and head in eight or four bits, on a CPU: W [V, D] as ``narrow_linear.stored`` gives it.

The embedding widens the rows that it is asked for. The head multiplies as every narrow product does; a tied one reads
the embedding's own bytes, unless this CPU's operators want another layout. In four bits outputs are filled up to whole
blocks of 64, since a vocabulary has any size.

Of 126,464 x 4,096 on one core, looking up 32 rows takes 0.2 and 0.3 ms; a sum of all rows, 64 times, 0.9 s in eight
bits and 1.3 in four, where bfloat16 takes 0.5.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dllm.kernels.narrow_linear import PACK, NarrowLinear, outputs_at_once, placed, stored
from dllm.kernels.narrow_product import GROUP, widened


class NarrowEmbedding(nn.Module):
    """Rows of W [V, D] by their ids, in W's dtype. ``bits``: 8 or 4 of a weight."""

    narrow: Tensor
    scale: Tensor

    def __init__(self, narrow: Tensor, scale: Tensor, count: int, bits: int) -> None:
        """narrow, scale: as stored, of ``count`` (V) outputs or, in four bits, of those that fill up the last block."""
        super().__init__()
        self.count, self.bits = count, bits
        self.register_buffer("narrow", narrow)
        self.register_buffer("scale", scale)

    @staticmethod
    def of(weight: Tensor, bits: int) -> NarrowEmbedding:
        """Of a matrix [V, D]."""
        spare = -len(weight) % PACK if bits == 4 else 0
        return NarrowEmbedding(*stored(F.pad(weight, (0, 0, 0, spare)) if spare else weight, bits), len(weight), bits)

    @property
    def dtype(self) -> torch.dtype:
        return self.scale.dtype

    @property
    def device(self) -> torch.device:
        return self.narrow.device

    def forward(self, tokens: Tensor) -> Tensor:
        """Rows [..., D] of ids [...]."""
        return self._rows(tokens.flatten()).view(*tokens.shape, self._width)

    def mixed(self, shares: Tensor) -> Tensor:
        """What ``shares`` [R, V] of all rows add up to [R, D]: widened by tiles, summed in float32."""
        out, many = torch.zeros(len(shares), self._width), outputs_at_once(self._width)
        for begin in range(0, self.count, many):
            part = shares[:, begin : begin + many]
            out += part @ self._rows(torch.arange(begin, begin + part.shape[1]))
        return out.to(shares.dtype)

    def head(self, as_stored: bool = False) -> NarrowHead:
        """The head of the same matrix. as_stored: in the form of files, with which nothing multiplies."""
        both = (self.narrow, self.scale) if as_stored else placed(self.narrow, self.scale, False)
        return NarrowHead(*both, self.count, self.bits)

    @property
    def _width(self) -> int:
        return self.narrow.shape[1] * 8 // self.bits

    def _rows(self, ids: Tensor) -> Tensor:
        """[n, D] of ids [n]; each weight is rounded once, after its scale."""
        if self.bits == 8:
            return widened(self.narrow[ids], self.scale[ids, None], self.dtype)
        half = PACK // 2
        pairs = self.narrow.view(-1, self._width, half)[ids // PACK, :, ids % half]
        steps = pairs >> (ids % PACK // half * 4).to(torch.uint8)[:, None] & 15
        size, zero = self.scale[:, ids].transpose(0, 1).float().split(1, -1)
        wide = steps.float().sub_(8).view(len(ids), self._width // GROUP, GROUP).mul_(size).add_(zero)
        return wide.flatten(1).to(self.dtype)


class NarrowHead(NarrowLinear):
    """Logits [..., V] of hidden states [..., D]: the first V outputs of its product."""

    def __init__(self, narrow: Tensor, scale: Tensor, count: int, bits: int) -> None:
        super().__init__(narrow, scale, None, bits, False)
        self.count = count

    def place(self, triton: bool) -> None:
        super().place(False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[..., : self.count]
