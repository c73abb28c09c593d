"""Tensors of safetensors files, one after the other, in little memory."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from dllm.models.files import Stored
from dllm.models.names import Source

# Bytes read of a file before its mapping is let go. Until then what was read counts as this process's memory: 9.9 GB of
# the 16.4 GB that loading LLaDA-8B took when all of it stayed mapped. Mapping anew reads the header, some milliseconds.
MAPPED = 1 << 28


class TensorReader:
    """Reads tensors by their published names. A context that lets its mapping go."""

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        self.stored = stored
        self.file: Path | None = None
        self.opened, self.since = ExitStack(), 0
        self.shard: Any = None

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.shard = None
        self.opened.close()

    def read(self, source: Source, dtype: torch.dtype, device: str = "cpu") -> Tensor:
        """A tensor, or the rows of it, in memory of its own; a few rows are mapped at a time."""
        found = self.stored[source.name]
        begin, end = source.rows or (0, found.shape[0])
        out = torch.empty((end - begin, *found.shape[1:]), dtype=dtype, device=device)
        step = max(1, (end - begin) * MAPPED // max(1, found.bytes))
        for row in range(begin, end, step):
            last = min(end, row + step)
            out[row - begin : last - begin] = self._mapped(found, row, last)
        return out

    def _mapped(self, found: Stored, begin: int, end: int) -> Tensor:
        if found.file != self.file or self.since > MAPPED:
            self.opened.close()
            self.shard = self.opened.enter_context(safe_open(found.file, framework="pt"))
            self.file, self.since = found.file, 0
        part: Tensor = self.shard.get_slice(found.name)[begin:end]
        self.since += part.nbytes
        return part
