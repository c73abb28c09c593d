"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dllm.errors import UserError


def write_whole(file: Path, text: str) -> None:
    """Write so that a reader finds the old file or the new one, never half of it. Raises OSError."""
    with whole_file(file) as scratch:
        scratch.write_text(text, encoding="utf-8")


@contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """Where to write what becomes ``file`` at the end, at once. An error leaves the old file and no other; SIGKILL
    leaves what was written, as ``file``'s name with the process's number and ``.tmp``."""
    scratch = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        yield scratch
        scratch.replace(file)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def write_or_refuse(file: Path, text: str, way_out: str = "Name another place.") -> Path:
    """``write_whole``; returns the file. Raises UserError, which names the file and the reason, where it cannot be."""
    if file.is_dir():
        raise UserError(f"cannot write {file}: it is a folder. Name a file in it.")
    if not file.parent.is_dir():
        raise UserError(f"cannot write {file}: there is no folder {file.parent}. {way_out}")
    try:
        write_whole(file, text)
    except OSError as error:
        raise UserError(f"cannot write {file} ({error.strerror}). {way_out}") from None
    return file
