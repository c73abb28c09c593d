"""What identifies a checkpoint: its content, every byte of it."""

from __future__ import annotations

import hashlib
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

READ = (".json", ".safetensors", ".jinja", ".txt")
LARGE = 64 << 20  # bytes; a smaller file is hashed in 0.05 s, as often as anybody asks
SETTLED = 2.0  # seconds after which a change shows in a file's times on every file system (FAT counts in twos)


def fingerprint(checkpoint: Path) -> str:
    """A hash of the files that a checkpoint is read from, or the commit of a download from the hub.

    SHA-256 takes 13 s of one core for the 16 GB of an 8B model (1.2 GB/s, measured), shards side by side, and the pages
    it reads are those that loading wants next. So a large file is hashed once, and its hash remembered for as long as
    the file's place, size, inode and times are the same.
    """
    if is_download(checkpoint):
        return checkpoint.name
    files = sorted(file for file in checkpoint.iterdir() if file.suffix in READ)
    with ThreadPoolExecutor() as pool:
        found = "".join(f"{file.name} {value}\n" for file, value in zip(files, pool.map(hashed, files), strict=True))
    return hashlib.sha256(found.encode()).hexdigest()[:16]


def is_download(checkpoint: Path) -> bool:
    """Whether it is a snapshot in the hub's cache, where folders are named by commits and files by their hashes."""
    commit = re.fullmatch("[0-9a-f]{40}", checkpoint.name) is not None
    return commit and checkpoint.parent.name == "snapshots" and (checkpoint.parents[1] / "blobs").is_dir()


def hashed(file: Path) -> str:
    """SHA-256 of a file; a large one's is remembered."""
    if file.stat().st_size < LARGE:
        return read(file)
    note = remembered(file)
    with suppress(OSError):
        return note.read_text()
    value = read(file)
    if remembered(file) == note and time.time() - file.stat().st_mtime > SETTLED:
        with suppress(OSError):  # a home that cannot be written: hashed again next time
            note.parent.mkdir(parents=True, exist_ok=True)
            scratch = note.with_suffix(f".{os.getpid()}")
            scratch.write_text(value)
            scratch.replace(note)
    return value


def read(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def remembered(file: Path) -> Path:
    """Where the hash of a file as it is now is noted. Nobody can set the time of its last change (ctime), not even who
    puts back that of its content (mtime) after an edit."""
    there = file.resolve().stat()
    state = (str(file.resolve()), there.st_size, there.st_ino, there.st_mtime_ns, there.st_ctime_ns)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "dllm" / "sha256" / hashlib.sha256(repr(state).encode()).hexdigest()
