"""Who may write to a folder: one process at a time, also where the file system has no locks."""

from __future__ import annotations

from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from dllm.errors import UserError


def lock_name(results: str) -> str:
    return f".{results}.lock"


def locked(folder: Path, results: str) -> BaseFileLock:
    """Two processes must not fill one folder; the lock goes with the process, however it ends.

    Where the file system has no locks (many network file systems) a file that names its owner stands for one. Nobody
    can tell from another machine whether that owner still lives: then the user has to say so.
    """
    file = folder / lock_name(results)
    locks: tuple[BaseFileLock, ...] = (FileLock(file), SoftFileLock(file.with_suffix(".owner")))
    for lock in locks:
        try:
            return lock.acquire(timeout=0.5, poll_interval=0.1).lock  # time to take over from an owner that is gone
        except Timeout:
            raise UserError(in_use(folder, lock)) from None
        except (OSError, NotImplementedError) as error:
            failed = error
    raise failed  # no locks, and no file either


def in_use(folder: Path, lock: BaseFileLock) -> str:
    """Why ``folder`` cannot be written to, and the way out."""
    way_out = "Wait for it, or choose another name=NAME."
    if not isinstance(lock, SoftFileLock):  # what filelock makes of a FileLock by itself, too
        return f"another process is writing to {folder}. {way_out}"
    said = Path(lock.lock_file).read_text().split() if Path(lock.lock_file).exists() else []
    owner = f" (number {said[0]} on {said[1]})" if len(said) > 1 else ""
    return f"another process{owner} is writing to {folder}. {way_out} If it is gone, delete {lock.lock_file}."
