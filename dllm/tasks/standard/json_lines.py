"""JSON-lines files of questions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dllm.common.errors import UserError, nearest
from dllm.common.unzip import read_unzipped

Doc = dict[str, Any]


def read_docs(path: str, fields: Sequence[str], argument: str = "task.path") -> list[Doc]:
    """The objects of a file, one per line, each with all ``fields``. It may be compressed by gzip.

    Raises UserError, naming the line, for a file that cannot be read, is cut off, or lacks a field: a benchmark with
    a question missing is another benchmark.
    """
    try:
        lines = read_unzipped(Path(path).expanduser()).decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror or error if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"{argument}={path!r} cannot be read ({why}). Name a file of JSON lines.") from None
    rows = [_row(line, f"{argument}={path!r}, line {at}", fields) for at, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise UserError(f"{argument}={path!r} holds no line. Write one object{_with(fields)} per line.")
    return rows


def _with(fields: Sequence[str]) -> str:
    """What an object must have, in words; nothing where any field will do."""
    return f" with {', '.join(fields)}" if fields else ""


def _row(line: str, place: str, fields: Sequence[str]) -> Doc:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place} is not JSON ({error}); the file may be cut off. Copy it again.") from None
    if not isinstance(row, dict):
        raise UserError(f"{place} is not an object. Write one object{_with(fields)} per line.")
    for field in fields:
        if field not in row:
            raise UserError(f"{place} has no {field!r}; it has {', '.join(row) or 'nothing'}.{nearest(field, row)}")
    return row
