"""Which rows predict which positions, and picking rows by column."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.canvas import Canvas
from dllm.models.config import ModelConfig


def predictors(positions: Tensor, canvas: Canvas, config: ModelConfig) -> Tensor:
    """The rows [B, L] whose hidden states predict ``positions``: themselves, or for shifted models the ones before."""
    if config.prediction_shift == 0:
        return positions
    left = torch.cat([positions[:, 1:], torch.zeros_like(positions[:, :1])], 1)
    return left & canvas.valid | (positions & (canvas.columns == canvas.first[:, None]))


def place_of(columns: Tensor, length: int) -> Tensor:
    """Where each column [B, L + 1] is among the computed ones; padding counts as the first."""
    order = torch.arange(columns.shape[1], device=columns.device).expand_as(columns)
    place = columns.new_zeros(columns.shape[0], length + 1).scatter(1, columns, order)
    place[:, length] = 0
    return place


def rows_of(values: Tensor, index: Tensor) -> Tensor:
    """Rows ``index`` [B, n] of values [B, m, ...], [B, n, ...]; beyond the last one (padding): the last."""
    batch = torch.arange(len(index), device=index.device)[:, None]
    return values[batch, index.clamp(max=values.shape[1] - 1)]

