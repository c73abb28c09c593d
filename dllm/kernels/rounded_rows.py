"""Rows in eight bits, and their products with weights of eight bits on a CPU. ``model.activations=int8``.

A row is steps of its own scale, x = s q, q = round(x / s), s = max |x| / ``most``. A sum of products q w is a whole
number, so a row's numbers are the same in any batch and in any order of the sum: y = (sum of q w) s S, with S the
scale of the output.

Where numbers are of very different size, as before a down projection, most of them would round to a step or none.
A row whose steps are below ``FEWEST`` on average is rounded twice: what the first rounding leaves becomes a second row,
in steps of s / (2 ``most``), and the products are added up. So a row with outliers costs two rows.

oneDNN multiplies unsigned bytes with signed ones. Processors with a dot product of bytes (VNNI, AMX) do it exactly. On
others it adds up pairs of products in 16 bits, which saturate: of 1,024 columns a sum was 150,000 off. Pairs of
(63 + 63) times 127 fit, so rows have seven bits there (``dllm.kernels.rounded_machine``).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dllm.common.ranks import ALONE, Ranks
from dllm.kernels.native import in_threads, library
from dllm.kernels.packed import LAYOUT_ROWS, padded_rows

TINY = torch.finfo(torch.float32).tiny
FEWEST = 6  # steps on average, below which a row is rounded twice: an error of some 3 % of the row
# Rows of one product: 50 MB of float32 at 24,576 outputs; rows that are rounded twice go beside the others.
AT_ONCE = 512


class Rounded(NamedTuple):
    """Rows in eight bits."""

    steps: Tensor  # int8 [R + T, D]; the last T are of rows that are rounded twice
    scale: Tensor  # float32 [R + T, 1]
    again: Tensor  # int64 [T]: the row of each of them

    def joined(self, product: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
        """[R, N] from products [R + T, N] of the steps. out: where to, rows of which lie apart."""
        count, native = len(self.steps) - len(self.again), library()
        if native is None or product.dtype != torch.float32 or dtype != torch.bfloat16 or not product.is_contiguous():
            return _joined(self, product).to(dtype) if out is None else out.copy_(_joined(self, product))
        if out is None:
            out = product.new_empty(count, product.shape[1], dtype=dtype)
        width, stride = product.shape[1], out.stride(0)

        def act(begin: int, end: int) -> None:
            native.call("join_rows", product[begin:], self.scale[begin:], out[begin:], end - begin, width, stride)

        in_threads(count, act)
        native.call("join_twice", product, self.scale, self.again, out, count, len(self.again), width, stride)
        return out

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The rows [R, D] that the steps stand for."""
        return _joined(self, self.steps).to(dtype)

    def bytes(self, zero: int) -> list[Tensor]:
        """The steps plus ``zero`` in parts of at most ``AT_ONCE`` rows, uint8 [r, D]; of each part the number of rows
        is one that oneDNN shall meet, with rows of zeros at its end (``padded_rows``)."""
        whole = self.steps.view(torch.uint8).add(zero)  # which wraps to what it should be
        return [
            torch.constant_pad_nd(part, (0, 0, 0, padded_rows(len(part)) - len(part))) for part in whole.split(AT_ONCE)
        ]


def _joined(rows: Rounded, product: Tensor) -> Tensor:
    """What ``Rounded.joined`` is, in the dtype of the scales."""
    whole = product * rows.scale
    count = len(whole) - len(rows.again)
    if len(rows.again):
        whole[:count].index_add_(0, rows.again, whole[count:])
    return whole[:count]


def in_steps(rows: Tensor, most: int, sharing: Ranks = ALONE) -> Rounded:
    """Rows [R, D] in steps from -``most`` to ``most``. sharing: ranks that hold columns of the rows, which then have
    one scale. ``in_steps_by_torch`` defines it."""
    native = library()
    if native is None or sharing.size > 1 or rows.dtype != torch.bfloat16 or not rows.is_contiguous() or not len(rows):
        return in_steps_by_torch(rows, most, sharing)
    count, width = rows.shape
    steps = rows.new_empty(2 * count, width, dtype=torch.int8)  # pages that no row needs are never touched
    scale, sums = rows.new_empty(2 * count, 1, dtype=torch.float32), rows.new_empty(count, dtype=torch.int32)

    def act(begin: int, end: int) -> None:
        parts = (tensor[begin:] for tensor in (rows, steps, scale, sums))
        native.call("round_rows", *parts, end - begin, width, most, TINY * most)

    in_threads(count, act)
    again = (sums < FEWEST * width).nonzero().flatten()
    total = count + len(again)

    def rest(begin: int, end: int) -> None:
        parts = (tensor[begin:] for tensor in (again, steps[count:], scale[count:]))
        native.call("round_rest", rows, steps, scale, *parts, end - begin, width, most)

    if len(again):
        in_threads(len(again), rest)
    return Rounded(steps[:total], scale[:total], again)


def in_steps_by_torch(rows: Tensor, most: int, sharing: Ranks = ALONE) -> Rounded:
    """What ``in_steps`` is."""
    wide = rows.float()
    peak = wide.abs().amax(1, keepdim=True)
    scale = sharing.largest(peak).clamp_(min=TINY * most).div_(most)
    steps = (wide / scale).round_()
    again = (steps.abs().sum(1) < FEWEST * rows.shape[1]).nonzero().flatten()  # whole numbers: exact in any order
    if not len(again):
        return Rounded(steps.to(torch.int8), scale, again)
    finer = scale[again] / (2 * most)
    rest = torch.addcmul(wide[again], steps[again], scale[again], value=-1).div_(finer).round_().clamp_(-most, most)
    return Rounded(torch.cat([steps, rest]).to(torch.int8), torch.cat([scale, finer]), again)


def with_bytes(part: Tensor, zero: int, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """[r, N] in float32 of rows uint8 [r, D] and oneDNN's weights, whose outputs have ``scale`` [N]. zero: the byte of
    0; bias [N]: is added."""
    zeros = torch.zeros(len(scale), dtype=torch.int64)
    return torch.ops.onednn.qlinear_pointwise(
        part, 1.0, zero, weight, scale, zeros, bias, 1.0, 0, torch.float32, "none", [], ""
    )


class PackedBytes:
    """Weights in eight bits in oneDNN's layout."""

    def __init__(self, weight: Tensor, scale: Tensor, most: int) -> None:
        """weight: int8 [N, D]. scale [N]: of each output. most: of the rows' steps."""
        self.zero = most + 1
        self.packed = torch.ops.onednn.qlinear_prepack(weight, [LAYOUT_ROWS, weight.shape[1]])
        self.scale = scale.float()
        sums = torch.cat([part.sum(1, dtype=torch.int32) for part in weight.split(AT_ONCE)])
        self.bias = -self.zero * sums.float() * self.scale  # what the zero adds to every row

    def __call__(self, rows: Rounded, dtype: torch.dtype) -> Tensor:
        """[R, N] of rows [R, D]."""
        products = [with_bytes(part, 0, self.packed, self.scale, self.bias) for part in rows.bytes(self.zero)]
        whole = products[0] if len(products) == 1 else torch.cat(products)
        return rows.joined(whole[: len(rows.steps)], dtype)
