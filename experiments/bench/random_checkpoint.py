"""Random weights in the published format, at real size: ``python -m experiments.bench.random_checkpoint NAME FOLDER``.

For what loading and forwards cost; no text means anything. NAME: llada-8b (16 GB), dream-7b (15 GB), llada2-mini
(33 GB), llada2-flash (206 GB), diffusiongemma-26b (50 GB). ``--layers`` makes a smaller one; the last must be a
multiple of six. A tokenizer is missing: give prompts as token ids, ``prompts=FILE`` with lines ``{"tokens": [...]}``.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dllm.common.errors import UserError
from dllm.models.config import ModelConfig
from dllm.models.network.networks import network_of
from dllm.models.weights.checkpoint_path import DESCRIPTIONS
from dllm.models.weights.files import INDEX
from dllm.models.weights.names import published_shapes
from experiments.support.scripts import refusing

SHARD = 2 << 30  # bytes of a file, about
POOL = 1 << 24  # random numbers that tensors are cut from: drawing 8 billion takes minutes
SHAPES: dict[str, dict[str, Any]] = {
    folder.name: json.loads((folder / "config.json").read_text()) for folder in sorted(DESCRIPTIONS.iterdir())
}  # published config.json files


def config_of(name: str, layers: int | None) -> dict[str, Any]:
    """The published config.json of a model, with fewer layers if that is asked for."""
    found = SHAPES[name]
    own = found.get("text_config", found)
    key = "n_layers" if "n_layers" in own else "num_hidden_layers"
    cut = {**own, key: layers or own[key]}
    whole = cut if own is found else {**found, "text_config": cut}
    return {**whole, "torch_dtype": "bfloat16"}


def tensors(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Weights of standard deviation 0.02, and ones for norms."""
    pool = (torch.randn(POOL, generator=torch.Generator().manual_seed(seed)) * 0.02).to(torch.bfloat16)
    begin = 0
    for name, shape in shapes.items():
        if len(shape) == 1:
            yield name, torch.ones(shape, dtype=torch.bfloat16)
            continue
        count = prod(shape)
        begin = (begin + 7919) % POOL  # no two tensors are cut alike
        if begin + count <= POOL:
            yield name, pool[begin : begin + count].view(shape).clone()
        else:
            yield name, pool.roll(-begin).repeat(-(-count // POOL))[:count].view(shape).clone()


def write(name: str, folder: Path, layers: int | None) -> int:
    """Write the checkpoint. Returns its bytes. Raises UserError where the disk has less room than it takes."""
    config = config_of(name, layers)
    with torch.device("meta"):
        shapes = published_shapes(network_of(ModelConfig.from_published(config)))
    total = 2 * sum(map(prod, shapes.values()))
    folder.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(folder).free) < total:
        raise UserError(f"{folder} has {free / 1e9:.0f} GB free, and {name} takes {total / 1e9:.0f}. Use --layers.")
    shard: dict[str, Tensor] = {}
    places: dict[str, str] = {}
    number = 0
    for key, tensor in tensors(shapes):
        shard[key] = tensor
        if sum(one.nbytes for one in shard.values()) >= SHARD:
            places |= dict.fromkeys(shard, file := f"model-{number:05}.safetensors")
            save_file(shard, folder / file)
            shard, number = {}, number + 1
    places |= dict.fromkeys(shard, file := f"model-{number:05}.safetensors")
    save_file(shard, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}))
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return total


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.random_checkpoint", description=__doc__)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int)
    given = parser.parse_args(arguments)
    size = write(given.name, given.folder, given.layers)
    print(f"{given.folder}: {size / 1e9:.1f} GB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
