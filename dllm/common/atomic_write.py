"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from dllm.common.errors import UserError


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


def lock_name(results: str) -> str:
    return f".{results}.lock"


def locked(folder: Path, results: str) -> BaseFileLock:
    """The lock on a file of results. It ends with the process, however that ends.

    Where the file system has no locks (many network file systems), a file that names its owner serves as one. Whether
    that owner still runs cannot be seen from another machine, so the user must decide. Raises UserError when another
    process has the lock, OSError when neither kind of lock can be made.
    """
    file = folder / lock_name(results)
    locks: tuple[BaseFileLock, ...] = (FileLock(file), SoftFileLock(file.with_suffix(".owner")))
    for lock in locks:
        try:
            return lock.acquire(timeout=0.5, poll_interval=0.1).lock  # to take over from a dead owner
        except Timeout:
            raise UserError(in_use(folder, lock)) from None
        except (OSError, NotImplementedError) as error:
            failed = error
    raise failed


def in_use(folder: Path, lock: BaseFileLock) -> str:
    """Why ``folder`` cannot be written to, and the way out."""
    way_out = "Wait for it, or choose another name=NAME."
    if not isinstance(lock, SoftFileLock):  # filelock also turns a FileLock into one
        return f"another process is writing to {folder}. {way_out}"
    words = Path(lock.lock_file).read_text().split() if Path(lock.lock_file).exists() else []
    owner = f" (number {words[0]} on {words[1]})" if len(words) > 1 else ""
    return f"another process{owner} is writing to {folder}. {way_out} If it is gone, delete {lock.lock_file}."
