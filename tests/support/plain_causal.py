"""Causal attention by position alone, which knows no order of ours: what the causal models are compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.parts import Exchanged, KeyValues, Memory, Projected, Visible


class Triangle(Memory):
    """It keeps what the layers exchange."""

    def __init__(self) -> None:
        self.layers: list[KeyValues] = []

    def exchange(self, layer: int, fresh: Projected, columns: Tensor | None) -> Exchanged:
        query, key, value = fresh.rotated()
        self.layers.append((key, value))
        return query, key, value, Visible(torch.ones(1, key.shape[2], key.shape[2]).tril().bool())
