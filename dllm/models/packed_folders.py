"""Tensors of a folder with one in the place of those that make up a weight, whichever program has packed it."""

from __future__ import annotations

from collections.abc import Collection

from dllm.models.bitsandbytes_packing import with_bitsandbytes
from dllm.models.config import ModelConfig
from dllm.models.files import Contents
from dllm.models.grouped_packing import with_packed
from dllm.models.grouped_settings import GroupedSettings
from dllm.models.mlx_packing import with_mlx
from dllm.models.mlx_settings import MlxSettings
from dllm.models.packed_settings import PackedSettings
from dllm.models.scaled_folder import with_scaled
from dllm.models.scaled_settings import ScaledSettings


def with_whole_weights(found: Contents, said: PackedSettings | None, widths: Collection[int]) -> Contents:
    """said: of the weights, by config.json (None: they are plain). widths: columns that matrices of the model have.
    Raises UserError where tensors do not fit each other, or what is said of them."""
    if said is None:
        return found
    if isinstance(said, GroupedSettings):
        return with_packed(found, said)
    if isinstance(said, MlxSettings):
        return with_mlx(found, said, widths)
    return with_scaled(found, said) if isinstance(said, ScaledSettings) else with_bitsandbytes(found)


def matrix_widths(config: ModelConfig) -> frozenset[int]:
    """How many columns matrices of a model have."""
    found = {config.width, config.mlp_width, *(config.attention_widths(layer)[0] for layer in range(config.layers))}
    return frozenset(found if config.moe is None else {*found, config.moe.width, config.moe.shared_width})
