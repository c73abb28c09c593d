"""A short name for a content."""

from __future__ import annotations

import hashlib


def digest(data: bytes) -> str:
    """The first 16 hex digits of its SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]
