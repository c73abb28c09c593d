"""GGUF files: metadata and the places of tensors. No weights are read.

The package ``gguf`` has a reader, too, which makes a view of NumPy for each of the 250,000 texts of a vocabulary and
takes seconds for that. Its tables of types and its arithmetic are used (``dllm.models.formats.gguf_packing``).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from dllm.common.errors import UserError
from dllm.common.installing import not_installed
from dllm.models.keys import printed, quote
from dllm.models.weights.files import broken, first_names, refuse_pointer

GGUF_SUFFIX = ".gguf"
_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # of struct
_TEXT, _ARRAY = 8, 9  # types of values, too
_MOST_SIZES = 4  # of a tensor
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of a file."""

    name: str  # in the file
    file: Path  # that holds it
    shape: tuple[int, ...]  # rows first
    kind: str  # F32, Q4_K, ...
    begin: int  # byte of the file at which it begins
    bytes: int  # how many

    @property
    def row_bytes(self) -> int:
        """Of the numbers of its last axis; of a vector of one number."""
        rows = prod(self.shape[:-1]) if len(self.shape) > 1 else prod(self.shape)
        return self.bytes // max(1, rows)


@dataclass(frozen=True)
class GgufFile:
    """What the header of a file says, of all its parts where it is split."""

    files: tuple[Path, ...]  # the parts, in order
    metadata: Mapping[str, Any]  # values by key
    tensors: Mapping[str, GgufTensor]  # by name


def is_gguf(path: Path) -> bool:
    """Whether a model's path is a GGUF file, by its name or, as of Ollama's blobs, by how it begins."""
    if not path.is_file():
        return False
    if path.suffix.lower() == GGUF_SUFFIX:
        return True
    try:
        with path.open("rb") as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def read_gguf(file: Path) -> GgufFile:
    """The header of a file and its other parts. Raises UserError for what is not whole GGUF, and without ``gguf``."""
    if find_spec("gguf") is None:
        raise not_installed(f"{{model.path={file}}}", "gguf", "gguf", "take the checkpoint's safetensors")
    files = _parts(file)
    return _parse(tuple((part, part.stat().st_size, part.stat().st_mtime_ns) for part in files))


def _parts(file: Path) -> list[Path]:
    """All parts of a file by their names, ``NAME-00001-of-00003.gguf``."""
    match = _SPLIT.fullmatch(file.name)
    if match is None:
        return [file]
    count = int(match[3])
    names = [f"{match[1]}-{number:05}-of-{match[3]}.gguf" for number in range(1, count + 1)]
    if missing := [name for name in names if not (file.parent / name).is_file()]:
        raise UserError(f"{file} is one of {count} parts, and {first_names(missing)} is missing. Finish the download.")
    return [file.parent / name for name in names]


@lru_cache(1)
def _parse(files: tuple[tuple[Path, int, int], ...]) -> GgufFile:
    """By names, sizes and times of files."""
    metadata: dict[str, Any] = {}
    tensors: dict[str, GgufTensor] = {}
    for file, size, _ in files:
        refuse_pointer(file)
        try:
            with file.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
                header = _Header(file, data, size)
                header.read()
        except (OSError, ValueError, struct.error) as error:
            if isinstance(error, UserError):
                raise
            raise broken(f"{file} is not a readable GGUF file ({error})") from error
        metadata = {**header.metadata, **metadata}
        tensors |= header.tensors
    if (count := metadata.get("split.count", 1)) not in (0, len(files)):
        raise UserError(
            f"{files[0][0]} is one of {count} parts, which are named NAME-00001-of-{count:05}.gguf. Give "
            "the parts their names."
        )
    return GgufFile(tuple(file for file, _, _ in files), metadata, tensors)


class _Header:
    """Reads the header of one file from its mapping."""

    def __init__(self, file: Path, data: mmap, size: int) -> None:
        self.file, self.data, self.size, self.at = file, data, size, 0
        self.errors = "strict"  # how texts are decoded
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}

    def read(self) -> None:
        if self.data[:4] != _MAGIC:
            raise UserError(f"{self.file} does not begin as a GGUF file does. Copy the file again, or take another.")
        self.at = 4
        version = self._number("I")
        if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
            raise UserError(
                f"{self.file} has its bytes in the other order (big-endian). Take the little-endian file, or convert "
                "it by gguf-convert-endian."
            )
        if version not in _VERSIONS:
            raise UserError(
                f"{self.file} is GGUF of version {version}; versions {' and '.join(map(str, _VERSIONS))} are read. "
                "Take a file that a later converter wrote."
            )
        count, keys = self._number("Q"), self._number("Q")
        for _ in range(keys):
            name = self._text()
            # A text that is not read need not be UTF-8; of a vocabulary every byte counts.
            self.errors = "strict" if name.startswith("tokenizer.") else "replace"
            self.metadata[name] = self._value(self._number("I"))
            self.errors = "strict"
        infos = [self._info() for _ in range(count)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise broken(f"{self.file} has general.alignment={quote(alignment)}")
        begin = -(-self.at // alignment) * alignment
        for name, shape, kind, offset in infos:
            self._place(name, shape, kind, begin + offset)

    def _place(self, name: str, shape: tuple[int, ...], kind: int, begin: int) -> None:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            tensor_type = GGMLQuantizationType(kind)
        except ValueError:
            raise UserError(
                f"{self.file}: tensor {printed(name)} has type {kind}, which gguf does not know. Update it by pip "
                "install -U gguf, or take a file of another type."
            ) from None
        block, size = GGML_QUANT_SIZES[tensor_type]
        if shape[-1] % block:
            raise broken(f"{self.file}: tensor {printed(name)} has rows of {shape[-1]} numbers as {tensor_type.name}")
        length = prod(shape) // block * size
        if begin + length > self.size:
            raise UserError(
                f"{self.file} has {self.size} bytes, and tensor {printed(name)} ends at byte {begin + length}: the "
                "file is cut off. Finish the download."
            )
        self.tensors[name] = GgufTensor(name, self.file, shape, tensor_type.name, begin, length)

    def _info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, count = self._text(), self._number("I")
        if not 1 <= count <= _MOST_SIZES:
            raise broken(f"{self.file}: tensor {printed(name)} has {count} sizes")
        shape = tuple(self._number("Q") for _ in range(count))[::-1]
        return name, shape, self._number("I"), self._number("Q")

    def _value(self, kind: int, inner: bool = False) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY and not inner:
            kind, count = self._number("I"), self._number("Q")
            if kind in _NUMBERS:
                form = f"<{count}{_NUMBERS[kind]}"
                self._need(struct.calcsize(form) if count <= self.size else self.size)
                numbers = struct.unpack_from(form, self.data, self.at)
                self.at += struct.calcsize(form)
                return list(numbers)
            self._need(8 * count)
            return [self._value(kind, True) for _ in range(count)]
        if kind not in _NUMBERS:
            raise broken(f"{self.file} has a value of type {kind}, which GGUF does not have")
        return self._number(_NUMBERS[kind])

    def _number(self, form: str) -> Any:
        size = struct.calcsize("<" + form)
        self._need(size)
        self.at += size
        return struct.unpack_from("<" + form, self.data, self.at - size)[0]

    def _text(self) -> str:
        size = self._number("Q")
        self._need(size)
        self.at += size
        return self.data[self.at - size : self.at].decode("utf-8", self.errors)

    def _need(self, count: int) -> None:
        if self.at + count > self.size:
            raise UserError(f"{self.file} ends inside its header, after {self.size} bytes. Finish the download.")
