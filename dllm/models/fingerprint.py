"""The fingerprint of a checkpoint: a hash of its whole content."""

from __future__ import annotations

import hashlib
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from dllm.common.atomic_write import write_whole
from dllm.common.cache_folder import cache_folder
from dllm.common.digest import digest, sha256_of
from dllm.models.formats.gguf_file import is_gguf, read_gguf

HASHED_SUFFIXES = (".json", ".safetensors", ".jinja", ".txt")
LARGE_BYTES = 64 << 20  # smaller files are hashed at every call, in 0.05 s
SETTLED_SECONDS = 2.0  # after so long, every file system shows a change in a file's times (FAT counts in twos)


def fingerprint(checkpoint: Path) -> str:
    """A hash of the files that loading reads, or the commit of a download from the hub.

    SHA-256 takes 13 s of one core for the 16 GB of an 8B model (1.2 GB/s, measured). Shards are hashed in parallel, and
    loading then finds them in memory. A large file is hashed once. Its hash is noted, and holds as long as the file's
    path, size, inode and times are the same.
    """
    if is_download(checkpoint):
        return checkpoint.name
    files = [checkpoint]
    if checkpoint.is_dir():
        files = sorted(file for file in checkpoint.iterdir() if file.suffix in HASHED_SUFFIXES)
    elif is_gguf(checkpoint):
        files = list(read_gguf(checkpoint).files)
    with ThreadPoolExecutor() as pool:
        hashes = zip(files, list(pool.map(file_hash, files)), strict=True)
    return digest("".join(f"{file.name} {value}\n" for file, value in hashes).encode())


def is_download(checkpoint: Path) -> bool:
    """Whether it is a snapshot in the hub's cache, which names folders by commits and files by their hashes."""
    commit = re.fullmatch("[0-9a-f]{40}", checkpoint.name) is not None
    return commit and checkpoint.parent.name == "snapshots" and (checkpoint.parents[1] / "blobs").is_dir()


def file_hash(file: Path) -> str:
    """SHA-256 of a file. That of a large file is noted on disk."""
    if file.stat().st_size < LARGE_BYTES:
        return sha256_of(file)
    note = hash_note(file)
    with suppress(OSError):
        return note.read_text()
    value = sha256_of(file)
    if hash_note(file) == note and time.time() - file.stat().st_mtime > SETTLED_SECONDS:
        with suppress(OSError):  # the home cannot be written: the file is hashed again next time
            note.parent.mkdir(parents=True, exist_ok=True)
            write_whole(note, value)
    return value


def hash_note(file: Path) -> Path:
    """Where the hash of the file, in its present state, is noted.

    The state has the time of the last change (ctime), because no program can set it back. A program that edits a file
    can set back the time of its content (mtime).
    """
    there = file.resolve().stat()
    state = (str(file.resolve()), there.st_size, there.st_ino, there.st_mtime_ns, there.st_ctime_ns)
    return cache_folder() / "sha256" / hashlib.sha256(repr(state).encode()).hexdigest()
