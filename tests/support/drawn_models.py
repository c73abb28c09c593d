"""Weights of test models that are not stored plain: random ones are drawn from their seed, trained ones unpacked.

The recipes in tests/data/drawn_models.json draw, bit for bit, the weights on which reference logits were recorded: one
generator a model, one standard normal draw a tensor in the order of ``draws``, scaled by ``scaled``. PyTorch on a CPU
with AVX2 draws these numbers; without AVX2 4 in 10 differ, by up to 2e-6, which shows in float64 alone.
"""

from __future__ import annotations

import json
import lzma
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

DATA = Path(__file__).parents[1] / "data"
MODELS, RECIPES = DATA / "models", json.loads((DATA / "drawn_models.json").read_text())
SINGLE = "model.safetensors"


def write_missing(folder: Path) -> None:
    """The weights of a test model as plain files, unless they are there. Other folders are left alone."""
    if folder.resolve().parent != MODELS:
        return
    recipe, packed = RECIPES.get(folder.name), folder / f"{SINGLE}.xz"
    if recipe and not all((folder / file).is_file() for file in recipe["sha256"]):
        for file, data in drawn(folder.name).items():
            _write(folder / file, data)
    elif packed.is_file() and not (folder / SINGLE).is_file():
        _write(folder / SINGLE, lzma.decompress(packed.read_bytes()))


def drawn(name: str) -> dict[str, bytes]:
    """The files of a random model by their names, of one shard or several."""
    index = MODELS / name / f"{SINGLE}.index.json"
    shards = json.loads(index.read_text())["weight_map"] if index.is_file() else {}
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in _tensors(RECIPES[name]).items():
        parts.setdefault(shards.get(key, SINGLE), {})[key] = tensor
    return {file: save(part, metadata={"format": "pt"}) for file, part in parts.items()}


def scaled(name: str, noise: Tensor, router: float) -> Tensor:
    """Standard normal ``noise`` as the tensor of this name: deviations from 1 of norms, from 0 of the others."""
    if name.endswith("expert_bias"):
        return 0.05 * noise
    if name.endswith("bias"):
        return 0.3 * noise
    if noise.dim() == 1:
        return 1 + 0.2 * noise
    return (router if name.endswith("mlp.gate.weight") else 0.15) * noise


def _tensors(recipe: dict[str, Any]) -> dict[str, Tensor]:
    generator, router = torch.Generator().manual_seed(recipe["seed"]), recipe.get("router", 0.15)
    tensors = {
        key: scaled(key, torch.randn(shape, generator=generator), router) for key, shape in recipe["draws"].items()
    }
    tensors |= {key: tensors[source].clone() for key, source in recipe.get("tied", {}).items()}
    return tensors | {key: torch.tensor(numbers) for key, numbers in recipe.get("given", {}).items()}


def _write(file: Path, data: bytes) -> None:
    """Whole at once: tests that run beside this one read it."""
    place = file.with_name(f"{file.name}.{os.getpid()}")
    place.write_bytes(data)
    place.replace(file)


def write_all() -> None:
    for folder in MODELS.iterdir():
        write_missing(folder)


if __name__ == "__main__":
    write_all()
