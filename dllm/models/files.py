"""A checkpoint's files: JSON and the headers of safetensors. No weights are read, and no code is ever executed."""

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
    """One tensor of a file: its published name, file, shape and dtype as safetensors calls it."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str


def broken(problem: str) -> UserError:
    """The error for files that cannot be right as they are."""
    return UserError(f"{problem}. Copy the checkpoint again.")


def mismatched(problem: str, files: str) -> UserError:
    """The error for files that do not belong together."""
    return UserError(f"{problem}. Copy {files} of one checkpoint.")


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises UserError when the file is broken or holds no object."""
    try:
        content = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise broken(f"{file} is not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise broken(f"{file} holds a JSON {type(content).__name__}, not an object")
    return content


def read_text(file: Path) -> str:
    """The text of a UTF-8 file. Raises UserError when it is not readable UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise broken(f"{file} is no readable UTF-8 text ({error})") from error


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """The headers of all safetensors of a folder, sharded or single. Raises UserError when they are broken, and
    MemoryError when they do not fit."""
    found: dict[str, Stored] = {}
    for file in _weight_files(folder):
        for tensor in headers(file):
            if tensor.name in found:
                both = f"{found[tensor.name].file.name} and {file.name}"
                raise broken(f"{folder}: tensor {shown(tensor.name)} is in {both}")
            found[tensor.name] = tensor
    return found


def headers(file: Path) -> list[Stored]:
    """The headers of one safetensors file. Raises UserError when they are broken, and MemoryError when they do not fit.
    """
    try:
        with safe_open(file, framework="pt") as shard:
            parts = [(name, shard.get_slice(name)) for name in shard.keys()]  # noqa: SIM118
            return [Stored(name, file, tuple(part.get_shape()), part.get_dtype()) for name, part in parts]
    except Exception as error:
        if "allocate memory" in str(error):  # the file is sound, and larger than what there is
            raise MemoryError(f"{file} cannot be mapped") from error
        raise broken(f"{file} is no readable safetensors file ({error})") from error


def _weight_files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        return _indexed(folder)
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    pickled = [name for name in PICKLES if (folder / name).exists()]
    if pickled:
        raise UserError(
            f"{folder} holds {pickled[0]}, a pickle. Opening a pickle can run code, so it is never read. "
            "Convert it to safetensors, or take the checkpoint's safetensors version."
        )
    raise UserError(f"{folder} holds neither {SINGLE} nor {INDEX}. Point model.path at a complete checkpoint.")


def _indexed(folder: Path) -> list[Path]:
    """The shards that the index names. They must lie in the folder itself."""
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise broken(f"{folder / INDEX} has no weight_map, which names the shards")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not re.fullmatch(r"[^/\\\x00]+\.safetensors", name):
            raise broken(
                f"{folder / INDEX} has weight_map[{shown(tensor)}]={shown(name)}, which must be the name of a "
                "safetensors file in the same folder"
            )
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        listed = ", ".join(name if name.isprintable() else shown(name) for name in missing[:3])
        raise UserError(f"{folder} lacks {listed}{more}, named in {INDEX}. Finish the download.")
    return [folder / name for name in names]
