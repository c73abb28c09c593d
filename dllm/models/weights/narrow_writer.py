"""``task=quantize``: a checkpoint's weights in fewer bits, as a folder of their own (``narrow_folder``).

Part by part: read, fuse, quantise, write, free. A part's file has its own name only when it is whole and on the disk.
config.json comes last, so a folder that is not whole is not a checkpoint. ``quantizing.json`` says what is done: a
conversion that was killed goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from dllm.common.atomic_write import whole_file, write_whole
from dllm.common.digest import json_digest
from dllm.common.errors import UserError
from dllm.models.config import ModelConfig
from dllm.models.formats.gguf_file import is_gguf, read_gguf
from dllm.models.formats.gguf_tokenizer import tokenizer_at
from dllm.models.formats.prequantized import QUANTISED_KEYS, STORED_KEY, kinds_entry
from dllm.models.network.fused import fuse_products
from dllm.models.weights.adapter import Adapter
from dllm.models.weights.files import CONVERSION, INDEX, read_json
from dllm.models.weights.footprint import Footprint, gib
from dllm.models.weights.load_progress import Watch
from dllm.models.weights.names import parameter_sources
from dllm.models.weights.narrow_folder import CHECKSUMS, TYPE_NAMES, changed_files, tensors_of
from dllm.models.weights.quantize import quantize_end, quantize_part
from dllm.models.weights.weights import fill, parts_of, prepared

COPIED = ("*.json", "*.txt", "*.jinja")  # beside the weights: tokenizer, template, settings of generation
ALIGNED = 64  # bytes


@dataclass
class Conversion:
    """What of a conversion is done."""

    folder: Path  # that is written
    about: str  # a digest of source and kind: another one does not go on here
    files: dict[str, str] = field(default_factory=dict)  # SHA-256 of each file that is whole
    places: dict[str, str] = field(default_factory=dict)  # the file of each tensor
    total: int = 0  # bytes of all tensors

    @staticmethod
    def begun(folder: Path, about: str) -> Conversion:
        """A new one, or the one that the folder holds. Raises UserError where it holds something else."""
        state = folder / CONVERSION
        for name in (CONVERSION, INDEX, "config.json", "model-*.safetensors"):
            for scratch in folder.glob(f"{name}.*.tmp"):  # of a killed process
                scratch.unlink()
        if not state.is_file():
            if folder.is_dir() and any(folder.iterdir()):
                raise UserError(f"quantize.to={folder} is not empty. Name another folder.")
            return Conversion(folder, about)
        record = read_json(state)
        if record.get("about") != about:
            raise UserError(
                f"quantize.to={folder} holds a conversion of another checkpoint or kind that has not ended. Delete the "
                "folder, or name another."
            )
        conversion = Conversion(folder, about, record["files"], record["places"], record["total"])
        for sentence in changed_files(folder, conversion.files):
            raise UserError(f"quantize.to={folder}: {sentence}. Delete the folder, and begin again.")
        return conversion

    def note(self) -> None:
        state = {"about": self.about, "files": self.files, "places": self.places, "total": self.total}
        write_whole(self.folder / CONVERSION, json.dumps(state))

    def add(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write a part's file, and note it."""
        self.files[name] = write_tensors(self.folder / name, tensors)
        self.places |= dict.fromkeys(tensors, name)
        self.total += sum(tensor.nbytes for tensor in tensors.values())
        self.note()


def quantize_folder(
    source: Path,
    target: Path,
    config: ModelConfig,
    kind: str,
    adapter: Adapter | None,
    watch: Watch,
    head: str | None = None,
) -> int:
    """Write ``target``. head: the kind of embedding and head (None: they stay). Returns the bytes of its tensors.
    Raises UserError for a folder that is not empty or of another conversion, and where the disk has too little room."""
    kinds = kinds_entry(kind, head)
    about = json_digest([kinds, _state(source), None if adapter is None else _state(adapter.folder)])
    conversion = Conversion.begun(target, about)
    model, tensors, _ = prepared(source, config, adapter)
    _refuse_full_disk(target, Footprint.of_model(model, kind, head).file_bytes - conversion.total)
    target.mkdir(parents=True, exist_ok=True)
    parts = [prefix for prefix, _ in parts_of(model) if tensors_of(model.get_submodule(prefix))]
    if config.tied:
        parts.remove("lm_head")
    names = {part: f"model-{number:05}-of-{len(parts):05}.safetensors" for number, part in enumerate(parts, 1)}
    conversion.note()

    def finish(prefix: str, part: nn.Module) -> None:
        if prefix in names:
            fuse_products(part)
            quantize_part(part, kind, False, True)
            quantize_end(model, prefix, head, True)
            conversion.add(names[prefix], tensors_of(model.get_submodule(prefix), prefix))
            model.get_submodule(prefix).to("meta")

    sources, done = parameter_sources(model), {part for part, name in names.items() if name in conversion.files}
    fill(model, tensors, sources, lambda name: "cpu", torch.bfloat16, adapter, finish, watch, done, kind == "int4")
    plain = {key: value for key, value in config.published.items() if key not in QUANTISED_KEYS}
    _complete(source, conversion, {**plain, STORED_KEY: kinds})
    return conversion.total


def _state(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a folder's files: what a conversion that goes on must find unchanged."""
    there = read_gguf(folder).files if is_gguf(folder) else folder.iterdir()
    files = sorted(file for file in there if file.is_file())
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def _refuse_full_disk(folder: Path, size: int) -> None:
    there = next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
    if (free := shutil.disk_usage(there).free) < size:
        raise UserError(
            f"quantize.to={folder}: {gib(size)} are to be written, and the disk has {gib(free)} free. Name a folder "
            "on another disk."
        )


def _complete(source: Path, conversion: Conversion, config: Mapping[str, object]) -> None:
    if not is_gguf(source):
        for file in _beside(source):
            shutil.copyfile(file, conversion.folder / file.name)
    elif (tokenizer := tokenizer_at(source)) is not None:
        tokenizer.save(conversion.folder)
    metadata = {"total_size": conversion.total, CHECKSUMS: conversion.files}
    index = json.dumps({"metadata": metadata, "weight_map": conversion.places}, indent=1)
    write_whole(conversion.folder / INDEX, index)
    write_whole(conversion.folder / "config.json", json.dumps(config, indent=1) + "\n")
    (conversion.folder / CONVERSION).unlink()


def _beside(source: Path) -> Iterable[Path]:
    """The files that are copied as they are."""
    for pattern in COPIED:
        for file in sorted(source.glob(pattern)):
            if file.name != "config.json" and not file.name.endswith(".safetensors.index.json"):
                yield file


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a safetensors file in which matrices begin at multiples of 64 bytes: a tensor of another length comes last,
    since the format has no gaps. Returns its SHA-256. Raises OSError; then and when it is stopped nothing is left."""
    tensors = dict(sorted(tensors.items(), key=lambda entry: (entry[1].nbytes % ALIGNED > 0, -entry[1].element_size())))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": TYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + tensor.nbytes],
        }
        end += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % ALIGNED)
    digest = hashlib.sha256()
    with whole_file(file) as scratch, scratch.open("wb") as stream:
        pieces: list[bytes | memoryview] = [len(text).to_bytes(8, "little"), text]
        pieces += map(_bytes_of, tensors.values())
        for piece in pieces:
            digest.update(piece)
            stream.write(piece)
        stream.flush()
        os.fsync(stream.fileno())
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().data
