"""The models that come with the package. Their weights are stored compressed, and unpacked once for each user. So may
be those of any folder. Four of the six are stored as differences to mini-llada or mini-ar: 11.5 MB in place of 16.4."""

from __future__ import annotations

import atexit
import lzma
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, save
from torch import Tensor

from dllm.common.cache_folder import cache_folder
from dllm.common.digest import digest, sha256_of
from dllm.common.errors import UserError
from dllm.models.weights.files import SINGLE

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
PACKED = f"{SINGLE}.xz"


def shipped_models() -> list[str]:
    """Names of the models that are shipped with the package."""
    return sorted(folder.name for folder in CHECKPOINTS.glob("*") if (folder / "config.json").is_file())


def shipped_folder(name: str) -> Path:
    """Where a shipped model is in the package. Its weights may be compressed there: see ``plain_folder``."""
    return CHECKPOINTS / name


def is_shipped(folder: Path) -> bool:
    """Whether a model was loaded by the name of a shipped one."""
    shipped = shipped_folder(folder.name)
    return folder.name in shipped_models() and folder in (shipped, plain_folder(shipped))


def plain_folder(source: Path) -> Path:
    """The folder itself, or for one with compressed weights, its copy with plain ones.

    The copy is below ``$XDG_CACHE_HOME/dllm`` (``~/.cache/dllm``), named by the digest of all files. It is made once,
    in 0.3 to 0.7 s. Where nothing can be written there, it is a temporary folder of this process.
    """
    if (source / SINGLE).is_file() or not (source / PACKED).is_file():
        return source
    try:
        folder = _cached(source)
    except (OSError, RuntimeError):  # a full or read-only disk; RuntimeError: the user has no home
        return _temporary(source)
    return folder if _whole(source, folder) else _temporary(source)


def _cached(source: Path) -> Path:
    """The copy among the user's caches, made where it is missing. The model's name comes last: reports show it."""
    key = digest("".join(sha256_of(file) for file in _files(source)).encode())
    folder = cache_folder() / "checkpoints" / key / source.resolve().name
    if _whole(source, folder):
        return folder
    shutil.rmtree(folder, ignore_errors=True)  # one that a cleaner of caches left incomplete
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        copy = Path(place) / "made"
        _unpack(source, copy)
        with suppress(OSError):  # another process was first
            copy.rename(folder)
    return folder


def shipped_tensors(name: str) -> Mapping[str, Tensor]:
    """The tensors of a shipped model."""
    return load_file(plain_folder(shipped_folder(name)) / SINGLE)


def _join(file: Path) -> None:
    """Add the base's tensors, which the metadata name, to differences (``experiments.mini.ship``): these are of bit
    patterns read as whole numbers, so that sums are exact."""
    with safe_open(file, "pt") as weights:
        pairs = weights.metadata() or {}
    if "base" in pairs:
        tensors, bases = load(file.read_bytes()), shipped_tensors(pairs["base"])
        whole = {
            name: as_bits(tensor) + as_bits(bases[pairs[name]]) if name in pairs else tensor
            for name, tensor in tensors.items()
        }
        file.write_bytes(save(as_floats(whole), metadata={"format": "pt"}))


def as_bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int16)


def as_floats(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.view(torch.bfloat16) for name, tensor in tensors.items()}


@cache
def _temporary(source: Path) -> Path:
    place = Path(tempfile.mkdtemp(prefix="dllm."))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    folder = place / source.resolve().name
    _unpack(source, folder)
    return folder


def _files(source: Path) -> list[Path]:
    return sorted(file for file in source.iterdir() if file.is_file())


def _whole(source: Path, folder: Path) -> bool:
    names = {file.name for file in _files(source)} - {PACKED} | {SINGLE}
    return all((folder / name).is_file() for name in names)


def _unpack(source: Path, folder: Path) -> None:
    folder.mkdir()
    for file in _files(source):
        if file.name != PACKED:
            shutil.copyfile(file, folder / file.name)
    try:
        with lzma.open(source / PACKED) as stream, (folder / SINGLE).open("wb") as target:
            shutil.copyfileobj(stream, target)
        if source.parent == CHECKPOINTS:
            _join(folder / SINGLE)
    except (lzma.LZMAError, EOFError) as error:
        raise UserError(f"{source / PACKED} cannot be unpacked ({error}). Fetch it again, whole.") from None
