"""Which rows predict which positions, what the model's attention says of a canvas, and picking rows by column."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dllm.common.rowwise import T, each_tensor, join
from dllm.contract.canvas import Canvas
from dllm.models.config import ModelConfig
from dllm.models.memory import DeviceCopies
from dllm.models.visibility import AttentionKind, AttentionOrder


def predictors(positions: Tensor, canvas: Canvas, config: ModelConfig) -> Tensor:
    """The columns [B, L] whose hidden states predict ``positions`` [B, L]: the same, or in shifted models the ones
    before."""
    shifts = config.shifts(canvas.masked & canvas.valid, canvas.start)
    if isinstance(shifts, int) and shifts == 0:
        return positions
    moved = positions if isinstance(shifts, int) else positions & (shifts > 0)
    left = torch.cat([moved[:, 1:], torch.zeros_like(moved[:, :1])], 1)
    own = moved & (canvas.columns == 0)
    return left & canvas.valid | (own if isinstance(shifts, int) else own | (positions & ~moved))


def order_of(canvas: Canvas, config: ModelConfig) -> AttentionOrder | None:
    """Who sees whom on the canvas; None: every column sees every column."""
    if type(config.attention) is AttentionKind:  # all columns, without a look at the canvas
        return None
    return config.attention.order(canvas.masked & canvas.valid, canvas.start)


def committable_next(canvas: Canvas, config: ModelConfig) -> tuple[Tensor, Tensor | None]:
    """The columns [B, L] that the next forward may commit, and those that it commits at once and alone (None: there are
    none), as ``ForwardPlan.committable`` and ``forced``."""
    masked, kind = canvas.masked & canvas.valid, config.attention
    predicted, alone = kind.predicted(masked, canvas.start), kind.alone(masked, canvas.start)
    return canvas.valid if predicted is None else predicted, alone


def gather_rows(values: Tensor, index: Tensor) -> Tensor:
    """Rows ``index`` [B, n] of values [B, m, ...]: [B, n, ...]. An index beyond the last row (padding) gives that
    row."""
    batch = torch.arange(len(index), device=index.device)[:, None]
    return values[batch, index.clamp(max=values.shape[1] - 1)]


def gather_padded(values: Tensor, index: Tensor, beyond: float | bool) -> Tensor:
    """Entries ``index`` [B, u] of values [B, m]; ``beyond`` for index m, which is padding."""
    return torch.cat([values, torch.full_like(values[:, :1], beyond)], 1).gather(1, index)


class KeptRows:
    """Rows of every layer by column [B, L + 1, ...]; the last one takes what padding writes. sizes: the shape of a row
    in each layer, where their memory may come from outside (under static shapes)."""

    def __init__(self, length: int, sizes: Sequence[tuple[int, ...]] = ()) -> None:
        self.length, self.sizes = length, sizes
        self.layers: list[Tensor] = []

    def put(self, layer: int, rows: Tensor, columns: Tensor | None, numbers: Tensor | None = None) -> Tensor:
        """Keep rows [B, n, ...] at their columns [B, n] (None: the first n), or those of the batch's rows ``numbers``
        at the first n. Returns all rows of the layer."""
        if len(self.layers) <= layer:
            self.layers.append(rows.new_zeros(len(rows), self.length + 1, *rows.shape[2:]))
        if columns is None:
            self.layers[layer][slice(None) if numbers is None else numbers, : rows.shape[1]] = rows
        else:
            self.layers[layer][torch.arange(len(rows), device=rows.device)[:, None], columns] = rows
        return self.layers[layer]

    def places(self, columns: Tensor) -> Tensor:
        """Where the columns [B, n] of all rows are in a layer, flat [B n]. Made once for all layers it saves two
        operations in each."""
        return (columns + torch.arange(len(columns), device=columns.device)[:, None] * (self.length + 1)).flatten()

    def put_at(self, layer: int, rows: Tensor, places: Tensor) -> None:
        """As ``put``, at their ``places``; the layer has been put before."""
        self.layers[layer].flatten(0, 1).index_copy_(0, places, rows.flatten(0, 1))

    def at(self, layer: int, places: Tensor) -> Tensor:
        """The rows [B, n, ...] of a layer at their ``places``."""
        held = self.layers[layer]
        return held.flatten(0, 1).index_select(0, places).unflatten(0, (len(held), -1))

    def grow(self, rows: int, length: int) -> None:
        """Make room for that many rows and columns; the new ones hold zeros."""
        self.length = length
        self.layers = [
            join(held, held.new_zeros(rows - len(held), length + 1, *held.shape[2:])) for held in self.layers
        ]

    def select(self, rows: Tensor) -> None:
        self.layers = moved_up(self.layers, rows)


def moved_up(held: T, rows: Tensor) -> T:
    """The given rows [b] at the front of the same tensors, so that CUDA graphs recorded on these still find them."""
    copies = DeviceCopies()

    def moved(one: Tensor) -> Tensor:
        one[: len(rows)] = one[copies(rows, one.device)]
        return one[: len(rows)]

    return each_tensor(moved, held)
