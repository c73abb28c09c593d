"""Test models as they lie in their folders, or flatter: ``tiny-llada-flat3`` is ``tiny-llada``, its logits a third.

The weight of the last norm is divided, in float32, while the model is loaded: flatter models are not stored. Tiny
models are certain or clueless: 2 % of their confidences lie between 0.7 and 0.99, so that thresholds decide little.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from drawn_models import write_missing
from torch import nn

from dllm.models import bundle
from dllm.models.weights import weights
from dllm.parts import Model, ModelConfig, Transformer, UserError

_FLAT = re.compile(r"(?P<base>.+)-flat(?P<scale>.*)")


def base_of(folder: Path) -> tuple[Path, float]:
    """The folder of the stored model, and by what its last norm is divided. Raises UserError for an unknown one."""
    if (folder / "config.json").is_file():
        write_missing(folder)
        return folder, 1.0
    flat = _FLAT.fullmatch(folder.name)
    base = folder.with_name(flat["base"]) if flat else folder
    if not (base / "config.json").is_file():
        raise UserError(f"model={folder.name} is unknown: {base} has no config.json; give its folder by --models")
    scale = flat["scale"] if flat else "1"
    if not re.fullmatch(r"\d+(\.\d+)?", scale) or not 0 < float(scale) <= 1000:
        raise UserError(f"model={folder.name}: its scale is no number above 0 and up to 1000, as in {base.name}-flat3")
    write_missing(base)
    return base, float(scale)


def read_model_config(folder: Path) -> ModelConfig:
    return weights.read_model_config(base_of(folder)[0])


def load_model(folder: Path, **options: Any) -> Transformer:
    """``dllm.models.weights.weights.load_model``."""
    base, scale = base_of(folder)
    return _flattened(weights.load_model(base, **options), scale)


def load(folder: Path, **options: Any) -> Model:
    """``dllm.models.bundle.load``."""
    base, scale = base_of(folder)
    model = bundle.load(base, **options)
    _flattened(model.transformer, scale)
    return model


def _flattened(model: Transformer, scale: float) -> Transformer:
    norm: nn.Module = model.norm
    assert isinstance(norm.weight, torch.Tensor)
    with torch.no_grad():
        norm.weight.copy_(norm.weight.float() / scale)
    return model
