"""Widen matrices that other programs have packed: ``python tests/packed.py FOLDER``.

A folder holds pairs NAME.json and NAME.safetensors (or .safetensors.xz). The first has {"source", "cases": {CASE:
...}} with what a config.json would say, the second the tensors of each case under ``CASE.LEAF``, and under
``CASE.widened`` the numbers that its program means. They must be ours bit for bit, but int8 of bitsandbytes, which
multiplies by a rounded 1 / 127. Cases of ggml are types of GGUF: ``TYPE.blocks``, and what ggml's C code makes of them.
Of GGUF files of DiffusionGemma each published tensor must be what the package ``gguf`` makes of it. Exit code: 0 all
equal, 1 some differ, 2 there is nothing that can be read.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # for what the tests share

from dllm.parts import (
    Contents,
    GgufPacking,
    GgufTensor,
    Source,
    StoredTensor,
    TensorReader,
    contents_of,
    headers,
    packed_settings,
    read_model_config,
    with_whole_weights,
)

Case = Mapping[str, Any]
INT8_ROUNDING = 1.2e-7  # relative, of bitsandbytes


@dataclass(frozen=True)
class Matrix:
    """One matrix, as we read it."""

    file: Path
    name: str
    difference: float  # the largest, relative where that is allowed
    allowed: float

    @property
    def equal(self) -> bool:
        return self.difference <= self.allowed


def _mlx(case: Case) -> dict[str, Any]:
    return {"quantization": case["config"]}


def _compressed(case: Case) -> dict[str, Any]:
    groups = {"group_0": case["group"]}
    return {
        "quantization_config": {"quant_method": "compressed-tensors", "format": case["format"], "config_groups": groups}
    }


def _bitsandbytes(case: Case) -> dict[str, Any]:
    bits = "load_in_4bit" if "quant_state" in case else "load_in_8bit"
    return {"quantization_config": {"quant_method": "bitsandbytes", bits: True}}


def _ggml(case: Case) -> dict[str, Any]:
    return {}  # a file's header names the type


SOURCES: dict[str, Callable[[Case], dict[str, Any]]] = {
    "mlx": _mlx,
    "compressed-tensors": _compressed,
    "bitsandbytes": _bitsandbytes,
    "ggml": _ggml,
}


def largest_difference(found: Tensor, expected: Tensor, relative: bool = False) -> float:
    """Infinite for other shapes, and for what is no number."""
    if found.shape != expected.shape:
        return float("inf")
    far = (found.double() - expected.double()).abs()
    far = far / expected.double().abs().clamp(min=1e-30) if relative else far
    return float(far.nan_to_num(nan=float("inf")).max())


def matrices_of(file: Path, folder: Path) -> Iterator[Matrix]:
    """Those of a pair. folder: for a file that is not compressed. Raises OSError, ValueError, KeyError or UserError for
    what is no such pair."""
    content = json.loads(file.read_text())
    said_by = next(said for word, said in SOURCES.items() if content["source"].startswith(word))
    weights = file.with_suffix(".safetensors")
    if not weights.is_file():
        packed, weights = weights.with_suffix(".safetensors.xz"), folder / weights.name
        weights.write_bytes(lzma.decompress(packed.read_bytes()))
    stored = {one.name: one for one in headers(weights)}
    for name, case in content["cases"].items():
        relative = said_by is _bitsandbytes and "quant_state" not in case
        found, expected = blocks(name, stored, folder) if said_by is _ggml else widened(name, said_by(case), stored)
        difference = largest_difference(found, expected, relative)
        yield Matrix(file, name, difference, INT8_ROUNDING if relative else 0)


def widened(name: str, said: Mapping[str, Any], stored: Mapping[str, StoredTensor]) -> tuple[Tensor, Tensor]:
    """The matrix of a case as we read it, and as its program does."""
    own = {key: one for key, one in stored.items() if key.startswith(f"{name}.")}
    expected = own.pop(f"{name}.widened")
    tensors = with_whole_weights(Contents(own), packed_settings(said, name), {expected.shape[1]}).tensors
    with TensorReader({**tensors, expected.name: expected}) as reader:
        return tuple(reader.read(Source(one), torch.float32) for one in (f"{name}.weight", expected.name))  # type: ignore[return-value]


def blocks(kind: str, stored: Mapping[str, StoredTensor], folder: Path) -> tuple[Tensor, Tensor]:
    """The numbers of a type's blocks as we read them, and as ggml does. folder: for their bytes."""
    with TensorReader(stored) as reader:
        raw = reader.read(Source(f"{kind}.blocks"), torch.uint8)
        expected = reader.read(Source(f"{kind}.widened"), torch.float32)
    file = folder / kind
    file.write_bytes(raw.numpy().tobytes())
    tensor = GgufTensor(kind, file, tuple(expected.shape), kind, 0, raw.numel())
    return GgufPacking(tensor, len(expected)).numbers(torch.empty, 0, len(expected)), expected


def gguf_matrices(file: Path) -> Iterator[Matrix]:
    """Those of a GGUF file of DiffusionGemma."""
    from gguf import GGUFReader, quants

    from tests.support.gemma_gguf import gguf_name

    theirs = {one.name: one for one in GGUFReader(file).tensors}
    stored = contents_of(file, read_model_config(file)).tensors
    with TensorReader(stored) as reader:
        for name, one in stored.items():
            own = theirs[gguf_name(name)]
            expected = torch.tensor(quants.dequantize(own.data, own.tensor_type)).reshape(one.shape)
            yield Matrix(file, name, largest_difference(reader.read(Source(name), torch.float32), expected), 0)


def main(arguments: Sequence[str]) -> int:
    folders = [Path(one) for one in arguments]
    files = [file for folder in folders for kind in ("*.json", "*.gguf") for file in sorted(folder.glob(kind))]
    if not files:
        print(__doc__, file=sys.stderr)
        return 2
    found: list[Matrix] = []
    with TemporaryDirectory() as folder:
        for file in files:
            try:
                own = list(gguf_matrices(file) if file.suffix == ".gguf" else matrices_of(file, Path(folder)))
            except (OSError, ValueError, KeyError, StopIteration) as error:
                print(f"Error: {file} cannot be read: {error!r}", file=sys.stderr)
                return 2
            found += own
            print(f"{file}: {sum(one.equal for one in own)} of {len(own)} equal")
    for one in found:
        if not one.equal:
            print(f"  differs: {one.file.name}, {one.name}, by {one.difference:.3g}")
    equal = sum(one.equal for one in found)
    print(f"{equal} of {len(found)} matrices equal")
    return int(equal < len(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
