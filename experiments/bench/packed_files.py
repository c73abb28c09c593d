"""What loading files in few bits costs: ``python -m experiments.bench.packed_files FOLDER --layers 8``.

Writes LLaDA-8B's shape with random codes as other programs pack it, one kind after the other, loads each in a process
of its own into bfloat16, and prints the CPU's seconds and the most memory that the process held. Embedding and head
stay in bfloat16, but in GGUF. Of 32 layers a folder takes 5 to 10 GB, and there is one at a time.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dllm.models.config import ModelConfig
from dllm.models.network.networks import network_of
from dllm.models.weights.names import published_shapes
from dllm.models.weights.weights import load_model
from experiments.bench import llama_cpp
from experiments.bench.random_checkpoint import config_of
from experiments.support.scripts import refusing

Said = Mapping[str, Any]
NAME, GIB = "llada-8b", 1 << 30
GGUF = "GGUF "  # before a type that ``llama_cpp`` writes


def codes(rows: int, width: int) -> Tensor:
    """Bytes that are numbers as float8, too."""
    return torch.randint(0, 0x77, (rows, width), dtype=torch.uint8)


def scales(rows: int, groups: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.full((rows, groups), 1e-3, dtype=dtype)


def mlx(rows: int, columns: int) -> dict[str, Tensor]:
    return {
        ".weight": codes(rows, columns // 2).view(torch.uint32),
        ".scales": scales(rows, columns // 64),
        ".biases": scales(rows, columns // 64),
    }


def float8(rows: int, columns: int) -> dict[str, Tensor]:
    return {".weight": codes(rows, columns).view(torch.float8_e4m3fn), ".weight_scale": scales(rows, 1)}


def int8(rows: int, columns: int) -> dict[str, Tensor]:
    return {".weight": codes(rows, columns).view(torch.int8), ".weight_scale": scales(rows, 1)}


def packed4(rows: int, columns: int) -> dict[str, Tensor]:
    data = codes(rows, columns // 2).view(torch.int32)
    return {
        ".weight_packed": data,
        ".weight_scale": scales(rows, columns // 128),
        ".weight_shape": torch.tensor([rows, columns]),
    }


def nvfp4(rows: int, columns: int) -> dict[str, Tensor]:
    return {
        ".weight_packed": codes(rows, columns // 2),
        ".weight_scale": codes(rows, columns // 16).view(torch.float8_e4m3fn),
        ".weight_global_scale": torch.tensor([1e3]),
    }


def nf4(rows: int, columns: int) -> dict[str, Tensor]:
    blocks = rows * columns // 64
    state = {
        "quant_type": "nf4",
        "blocksize": 64,
        "shape": [rows, columns],
        "nested_blocksize": 256,
        "nested_offset": 0.1,
    }
    table = {".weight.quant_map": torch.linspace(-1, 1, 16), ".weight.nested_quant_map": torch.linspace(-1, 1, 256)}
    return {
        ".weight": codes(rows * columns // 2, 1),
        ".weight.absmax": codes(blocks, 1).flatten(),
        **table,
        ".weight.nested_absmax": torch.full((-(-blocks // 256),), 1e-3),
        ".weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }


def bnb8(rows: int, columns: int) -> dict[str, Tensor]:
    return {".weight": codes(rows, columns).view(torch.int8), ".SCB": torch.full((rows,), 1e-3)}


def compressed(kind: str, **weights: Any) -> Said:
    return {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": kind,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        }
    }


KINDS: dict[str, tuple[Said, Callable[[int, int], dict[str, Tensor]]]] = {
    "MLX, 4 bits in groups of 64": ({"quantization": {"bits": 4, "group_size": 64}}, mlx),
    "compressed-tensors FP8": (compressed("float-quantized", type="float", num_bits=8, strategy="channel"), float8),
    "compressed-tensors INT8": (compressed("int-quantized", num_bits=8, strategy="channel"), int8),
    "compressed-tensors W4A16": (compressed("pack-quantized", num_bits=4, group_size=128), packed4),
    "compressed-tensors NVFP4": (compressed("nvfp4-pack-quantized", num_bits=4, type="float"), nvfp4),
    "bitsandbytes NF4, twice": ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, nf4),
    "bitsandbytes int8": ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, bnb8),
}


def write(kind: str, folder: Path, layers: int) -> Path:
    """Write a checkpoint of a kind. Returns what is loaded: the folder, or a file in it."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind.startswith(GGUF):
        file = folder / "model.gguf"
        llama_cpp.write(file, kind.removeprefix(GGUF), layers)
        return file
    said, pack = KINDS[kind]
    config = {**config_of(NAME, layers), **said}
    with torch.device("meta"):
        shapes = published_shapes(network_of(ModelConfig.from_published(config)))
    tensors = dict[str, Tensor]()
    for name, shape in shapes.items():
        if len(shape) == 2 and ".blocks." in name:
            tensors |= {name.removesuffix(".weight") + leaf: one for leaf, one in pack(*shape).items()}
        else:
            tensors[name] = torch.full(shape, 0.02, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def loaded(checkpoint: Path) -> tuple[float, float]:
    """CPU seconds to load a checkpoint, and the most GiB of this process."""
    torch.set_num_threads(1)
    before = time.process_time()
    load_model(checkpoint, dtype=torch.bfloat16)
    return time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.packed_files", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--load", action="store_true", help="load what FOLDER is, and print what that took")
    given = parser.parse_args(arguments)
    if given.load:
        print(json.dumps(loaded(given.folder)))
        return 0
    print("| kind | file, GB | CPU s to load | at most while loading, GiB |\n|---|---:|---:|---:|")
    for number, kind in enumerate((*KINDS, *(GGUF + one for one in llama_cpp.KINDS if one != "BF16"))):
        folder = given.folder / str(number)
        written = write(kind, folder, given.layers)
        size = sum(file.stat().st_size for file in folder.iterdir())
        command = [sys.executable, "-W", "ignore", "-m", "experiments.bench.packed_files", str(written), "--load"]
        seconds, most = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        shutil.rmtree(folder)
        print(f"| {kind} | {size / 1e9:.1f} | {seconds:.0f} | {most:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
