"""Files that may be compressed by gzip."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

GZIP = b"\x1f\x8b"  # the first bytes of a compressed file


def read_unzipped(file: Path) -> bytes:
    """What a file holds, without its compression. Raises OSError, also where it is cut off."""
    data = file.read_bytes()
    try:
        return gzip.decompress(data) if data.startswith(GZIP) else data
    except (EOFError, zlib.error) as error:
        raise OSError(str(error)) from None
