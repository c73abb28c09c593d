"""A checkpoint's files: JSON and the headers of safetensors. No weights are read, and no code is ever executed.

Which weights count is what transformers 5 decides (``_get_resolved_checkpoint_files``): the single file before an
index, and of an index each tensor in the shard that it names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import safe_open

from dllm.common.errors import Refusal, UserError
from dllm.models.formats.packing import Packing
from dllm.models.keys import printed, quote

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
CONVERSION = "quantizing.json"  # of a folder that ``task=quantize`` has not finished: what is done
# What is read of a folder, shards apart.
CHECKPOINT_FILES = (
    "config.json",
    "generation_config.json",
    "quantize_config.json",
    "quant_config.json",
    "hf_quant_config.json",
    SINGLE,
    INDEX,
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth", "consolidated.00.pth")
POINTERS = (b"version https://git-lfs.github.com/spec/", b"version https://hawser.github.com/spec/")
FLOATS = ("F64", "F32", "F16", "BF16")  # as safetensors call them
POINTER_BYTES = 1024  # the most that Git LFS reads of a pointer


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file."""

    name: str  # as published
    file: Path  # that holds it
    shape: tuple[int, ...]  # of the tensor
    dtype: str  # as safetensors calls it, or what people call the packing
    packing: Packing | None = None  # how its numbers are packed; None: they are there as they are

    @property
    def bytes(self) -> int:
        """Of the tensor's numbers. Kinds of float8 have names with several digits."""
        if self.packing is not None:
            return self.packing.bytes
        bits = re.search(r"\d+", self.dtype)
        return prod(self.shape) * (int(bits[0]) if bits else 8) // 8


@dataclass(frozen=True)
class Contents:
    """The tensors of a folder."""

    tensors: Mapping[str, StoredTensor]  # by name
    unnamed: frozenset[str] = frozenset()  # those that shards hold and the index does not name
    stale: bool = False  # the folder has an index that is not read
    notes: tuple[str, ...] = ()  # sentences about what is read in another way than the folder says


def broken(problem: str) -> UserError:
    """The error for files that cannot be right as they are."""
    return UserError(f"{problem}. Copy the checkpoint again.")


def mismatched(problem: str, files: str) -> UserError:
    """The error for files that do not belong together."""
    return UserError(f"{problem}. Copy {files} of one checkpoint.")


def refuse_pointer(file: Path) -> None:
    """Raise UserError for the pointer that ``git clone`` leaves instead of a file where Git LFS is not installed."""
    try:
        begin = file.read_bytes() if file.stat().st_size <= POINTER_BYTES else b""
    except OSError:
        return  # the reader of the file says what is wrong
    if begin.startswith(POINTERS):
        raise UserError(
            f"{file} is a Git LFS pointer, not the file itself. Run git lfs pull in {file.parent}, or download the "
            "checkpoint by its hub id."
        )


def refuse_no_files(folder: Path, names: Iterable[str]) -> None:
    """Raise UserError for a pipe, a folder or a broken link instead of a file: it would count as absent."""
    for name in names:
        path = folder / name
        if path.is_file() or not (path.is_symlink() or path.exists()):
            continue
        kind = "a folder" if path.is_dir() else "a device or a pipe" if path.exists() else "a link to nothing"
        raise broken(f"{path} is {kind}, not a file")


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises UserError when the file is broken or holds no object."""
    try:
        content = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise broken(f"{file} is not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise broken(f"{file} holds a JSON {type(content).__name__}, not an object")
    return content


def read_text(file: Path) -> str:
    """The text of a UTF-8 file. Raises UserError when it is not readable UTF-8."""
    refuse_pointer(file)
    try:
        return file.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise broken(f"{file} is not readable UTF-8 text ({error})") from error


def read_contents(folder: Path) -> Contents:
    """The headers of a folder's safetensors, single or sharded. Raises UserError when they are broken, and MemoryError
    when they do not fit."""
    if (folder / SINGLE).is_file():
        tensors = {tensor.name: tensor for tensor in headers(folder / SINGLE)}
        return Contents(tensors, stale=_has_stale_index(folder))
    if (folder / INDEX).is_file():
        return _sharded(folder)
    raise _no_weights(folder)


def headers(file: Path) -> list[StoredTensor]:
    """The headers of one safetensors file. Raises UserError if they are broken, MemoryError if they do not fit."""
    refuse_pointer(file)
    try:
        with safe_open(file, framework="pt") as shard:
            parts = [(name, shard.get_slice(name)) for name in shard.keys()]  # noqa: SIM118
            return [StoredTensor(name, file, tuple(part.get_shape()), part.get_dtype()) for name, part in parts]
    except Exception as error:
        if "allocate memory" in str(error):  # the file is fine, and larger than the memory
            raise MemoryError(f"{file} cannot be mapped") from error
        raise broken(f"{file} is not a readable safetensors file ({error})") from error


def _no_weights(folder: Path) -> UserError:
    pickled = [name for name in PICKLES if (folder / name).exists()]
    if pickled:
        return UserError(
            f"{folder} holds {pickled[0]}, a pickle. Opening a pickle can run code, so it is never read. "
            "Convert it to safetensors, or take the checkpoint's safetensors version."
        )
    names = sorted(file.name for kind in ("*.safetensors", "*.gguf") for file in folder.glob(kind))
    list_text = f" (it has {first_names(names)})" if names else ""
    return Refusal(
        f"{folder} holds neither {SINGLE} nor {INDEX}{list_text}. Point {{model.path:name}} at a complete checkpoint."
    )


def first_names(names: list[str], most: int = 3) -> str:
    """The first few of many names, and how many follow."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(printed, names[:most])) + more


def _has_stale_index(folder: Path) -> bool:
    """Whether there is an index of other files than the single one."""
    try:
        return (folder / INDEX).is_file() and {*_weight_map(folder).values()} != {SINGLE}
    except UserError:
        return True


def _sharded(folder: Path) -> Contents:
    """The tensors of the shards, each from the shard that the index names where several hold it. One that the index
    places wrongly, or does not name, counts where a single shard holds it. Raises UserError for one that it places
    wrongly and that none holds, or several."""
    weight_map = _weight_map(folder)
    holders: dict[str, dict[str, StoredTensor]] = {}
    for shard in sorted(set(weight_map.values())):
        for tensor in headers(folder / shard):
            holders.setdefault(tensor.name, {})[shard] = tensor
    for name, shard in weight_map.items():
        if shard not in (shards := holders.get(name, {})) and len(shards) != 1:
            raise broken(f"{folder}: tensor {printed(name)} is missing from {shard}, where {INDEX} places it")
    tensors = {}
    for name, shards in holders.items():
        if name in weight_map or len(shards) == 1:
            tensors[name] = shards.get(weight_map.get(name, ""), next(iter(shards.values())))
    return Contents(tensors, frozenset(holders.keys() - weight_map.keys()))


def _weight_map(folder: Path) -> dict[str, str]:
    """The shard of each tensor, as the index says. The shards must be in the folder itself."""
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise broken(f"{folder / INDEX} has no weight_map, which names the shards")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not re.fullmatch(r"[^/\\\x00]+\.safetensors", name):
            raise broken(
                f"{folder / INDEX} has weight_map[{quote(tensor)}]={quote(name)}, which must be the name of a "
                "safetensors file in the same folder"
            )
    missing = [name for name in sorted(set(weight_map.values())) if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder} lacks {first_names(missing)}, named in {INDEX}. Finish the download.")
    return weight_map
