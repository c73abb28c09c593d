"""Hashes and seeds of a content."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def digest(data: bytes) -> str:
    """The first 16 hex digits of its SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


def json_digest(value: Any) -> str:
    """The digest of a value as JSON with sorted keys; what JSON does not know counts by its ``str``."""
    return digest(json.dumps(value, sort_keys=True, default=str).encode())


def seed_from(text: str) -> int:
    """A seed below 2**56 from the SHA-256 of a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])


def sha256_of(file: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
