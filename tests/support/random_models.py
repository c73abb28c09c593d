"""Models of a given config with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dllm.parts import ModelConfig, Transformer


def random_model(published: Mapping[str, Any], seed: int = 0, std: float = 0.15) -> Transformer:
    """A model of the published config with seeded random weights."""
    model = Transformer(ModelConfig.from_published(published))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * std
        parameter.data = 1 + noise if "norm" in name else noise
    return model.eval().requires_grad_(False)
