"""A checkpoint's files: JSON and the headers of its safetensors. No weights are read, and no code is ever executed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from dllm.errors import UserError
from dllm.models.keys import shown

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth", "consolidated.00.pth")


@dataclass(frozen=True)
class Stored:
    """Where one tensor lies: file, shape, dtype name; ``name`` is the published one."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises UserError when it is broken or no object."""
    try:
        content = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not valid JSON ({error}). Copy the checkpoint again.") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} holds a JSON {type(content).__name__}, not an object. Copy the checkpoint again.")
    return content


def read_text(file: Path) -> str:
    """A text file in UTF-8. Raises UserError when it cannot be read as such."""
    try:
        return file.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise UserError(f"{file} is no readable UTF-8 text ({error}). Copy the checkpoint again.") from error


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Headers of all safetensors of a folder, sharded or single; nothing is loaded."""
    found: dict[str, Stored] = {}
    for file in _weight_files(folder):
        try:
            with safe_open(file, framework="pt") as shard:
                headers = [Stored(name, file, *_header(shard, name)) for name in shard.keys()]  # noqa: SIM118
        except Exception as error:
            raise UserError(f"{file} is no readable safetensors file ({error}). Copy the checkpoint again.") from error
        for tensor in headers:
            if tensor.name in found:
                both = f"{found[tensor.name].file.name} and {file.name}"
                raise UserError(f"{folder}: tensor {shown(tensor.name)} is in {both}. Copy the checkpoint again.")
            found[tensor.name] = tensor
    return found


def _header(shard: Any, name: str) -> tuple[tuple[int, ...], str]:
    part = shard.get_slice(name)
    return tuple(part.get_shape()), part.get_dtype()


def _weight_files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        return _indexed(folder)
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    pickled = [name for name in PICKLES if (folder / name).exists()]
    if pickled:
        raise UserError(
            f"{folder} holds {pickled[0]}, a pickle, which can run code when opened and is never read. "
            "Convert it to safetensors, or take the checkpoint's safetensors version."
        )
    raise UserError(f"{folder} holds neither {SINGLE} nor {INDEX}. Point model.path at a complete checkpoint.")


def _indexed(folder: Path) -> list[Path]:
    """The shards that the index names: files of the folder itself, never of another place."""
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{folder / INDEX} has no weight_map, which names the shards. Copy the checkpoint again.")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not re.fullmatch(r"[^/\\\x00]+\.safetensors", name):
            raise UserError(
                f"{folder / INDEX} has weight_map[{shown(tensor)}]={shown(name)}, which must be the name of a "
                "safetensors file in the same folder. Copy the checkpoint again."
            )
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        listed = ", ".join(name if name.isprintable() else shown(name) for name in missing[:3])
        raise UserError(f"{folder} lacks {listed}{more}, named in {INDEX}. Finish the download.")
    return [folder / name for name in names]
