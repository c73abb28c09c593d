"""Which rows predict which positions, what the model's attention says of a canvas, and picking rows by column."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.contract.canvas import Canvas
from dllm.models.config import ModelConfig
from dllm.models.network.attention_order import AttentionKind, AttentionOrder


def predictors(positions: Tensor, canvas: Canvas, config: ModelConfig) -> Tensor:
    """The columns [B, L] whose hidden states predict ``positions`` [B, L]: the same, or in shifted models the ones
    before."""
    shifts = config.shifts(canvas.masked & canvas.valid, canvas.start)
    if isinstance(shifts, int) and shifts == 0:
        return positions
    from_left = positions if isinstance(shifts, int) else positions & (shifts > 0)
    left = torch.cat([from_left[:, 1:], torch.zeros_like(from_left[:, :1])], 1)
    first = from_left & (canvas.columns == 0)
    return left & canvas.valid | (first if isinstance(shifts, int) else first | (positions & ~from_left))


def order_of(canvas: Canvas, config: ModelConfig) -> AttentionOrder | None:
    """Who sees whom on the canvas; None: every column sees every column."""
    if type(config.attention) is AttentionKind:  # all columns, without reading the canvas
        return None
    return config.attention.order(canvas.masked & canvas.valid, canvas.start)


def committable_next(canvas: Canvas, config: ModelConfig) -> tuple[Tensor, Tensor | None]:
    """The columns [B, L] that the next forward may commit, and those that it commits at once and alone (None: there are
    none), as ``ForwardPlan.committable`` and ``forced``."""
    masked, kind = canvas.masked & canvas.valid, config.attention
    predictable, alone = kind.predicted(masked, canvas.start), kind.alone(masked, canvas.start)
    return canvas.valid if predictable is None else predictable, alone


def gather_rows(values: Tensor, index: Tensor) -> Tensor:
    """Rows ``index`` [B, n] of values [B, m, ...]: [B, n, ...]. An index beyond the last row (padding) gives that
    row."""
    batch = torch.arange(len(index), device=index.device)[:, None]
    return values[batch, index.clamp(max=values.shape[1] - 1)]


def gather_padded(values: Tensor, index: Tensor, beyond: float | bool) -> Tensor:
    """Entries ``index`` [B, u] of values [B, m]; ``beyond`` for index m, which is padding."""
    return torch.cat([values, torch.full_like(values[:, :1], beyond)], 1).gather(1, index)
