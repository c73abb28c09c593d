"""The network of a config, whichever class computes it."""

from __future__ import annotations

from dllm.models.config import ModelConfig
from dllm.models.network.diffusion_gemma import DiffusionGemma
from dllm.models.network.transformer import Transformer


def network_of(config: ModelConfig) -> Transformer:
    """A network with weights of its own: on the meta device without any."""
    return DiffusionGemma(config) if config.gemma is not None else Transformer(config)
