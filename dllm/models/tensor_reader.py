"""Tensors of safetensors files, one after the other, in little memory."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from dllm.models.files import Stored
from dllm.models.names import Source

# Bytes read of a file before its mapping is let go. Until then what was read counts as this process's memory: 9.9 GB of
# the 16.4 GB that loading LLaDA-8B took when all of it stayed mapped. Mapping anew reads the header, some milliseconds.
MAPPED = 1 << 28


class TensorReader:
    """Reads tensors by their published names. Copy what it returns before the next call: it may be of a mapped file."""

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        self.stored = stored
        self.file: Path | None = None
        self.opened, self.since = ExitStack(), 0

    def read(self, source: Source) -> Tensor:
        """The tensor, or the rows of it, on the CPU and in the file's dtype."""
        found = self.stored[source.name]
        if found.file != self.file or self.since > MAPPED:
            self._open(found.file)
        part = self.shard.get_slice(found.name)
        tensor: Tensor = part[:] if source.rows is None else part[slice(*source.rows)]
        self.since += tensor.nbytes
        return tensor

    def _open(self, file: Path) -> None:
        self.opened.close()
        self.shard: Any = self.opened.enter_context(safe_open(file, framework="pt"))
        self.file, self.since = file, 0
