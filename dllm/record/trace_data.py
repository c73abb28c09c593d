"""Trace files as data: what JSON can hold, and why a file is not a trace. No file is trusted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from dllm.common.installing import not_installed
from dllm.record.turns import Commits, LengthRecord, RecordedGuesses, ShownMixtures, ShownTokens, TurnRecord

if TYPE_CHECKING:
    from pandas import DataFrame

RecordType = TypeVar("RecordType")
COMPRESSIONS = {b"\x1f\x8b": "gzip", b"PK": "zip", b"\x28\xb5": "zstd", b"BZ": "bzip2", b"\xfd7": "xz"}  # first bytes


class NoTrace(ValueError):
    """Why something is not a trace: the rest of a sentence that begins with its name."""


def jsonable(value: Any) -> Any:
    """What JSON can hold: no tensors, no tuples, and null for numbers that are none."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(entry) for key, entry in value.items()}
    if isinstance(value, Tensor):
        return jsonable(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(entry) for entry in value]
    if is_dataclass(value) and not isinstance(value, type):
        return jsonable(asdict(value))
    return value if not isinstance(value, float) or isfinite(value) else None


def json_of(file: Path) -> Any:
    """The JSON in a file. Raises NoTrace, with the likely reason, if it has none."""
    try:
        raw = file.read_bytes()
    except IsADirectoryError:
        raise NoTrace("is a folder") from None
    except OSError as error:
        raise NoTrace(f"cannot be read ({error.strerror})") from None
    compression = next((name for begin, name in COMPRESSIONS.items() if raw.startswith(begin)), None)
    if compression is not None:
        raise NoTrace(f"is compressed ({compression}): unpack it first")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise NoTrace("is not a trace of this program (it is not text in UTF-8)") from None
    try:
        return json.loads(text)
    except RecursionError:
        raise NoTrace("is not a trace of this program (its brackets are nested too deep)") from None
    except ValueError as error:
        raise NoTrace(f"is not a trace of this program ({no_json(text, error)})") from None


def no_json(text: str, error: ValueError) -> str:
    """Why a text is not JSON, in words."""
    if not text.strip():
        return "it is empty"
    if text.lstrip().startswith("<"):
        return "it is a page; the trace is the .json file beside it"
    if len(text.splitlines()) > 1 and all(line.startswith("{") for line in text.splitlines() if line.strip()):
        return "it has an object in each line, as results have; their traces lie in the folder traces beside them"
    if isinstance(error, json.JSONDecodeError) and cut_off(text, error):
        return "it is cut off before its end; copy it again"
    return f"it is not JSON: {error}"


def cut_off(text: str, error: json.JSONDecodeError) -> bool:
    """Whether nothing but the end is missing: the error is there, or at the quote that begins the last text."""
    return error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")


FORMER = {"steered": "corrected"}  # names of older versions' fields


def entries_of(kind: type, data: Any, what: str) -> dict[str, Any]:
    """``data`` if it has the fields of the dataclass ``kind``. Raises NoTrace where one is missing, or unknown."""
    if not isinstance(data, Mapping):
        raise NoTrace(f"is not a trace of this program ({what} is not an object)")
    is_required = {entry.name: entry.default is MISSING and entry.default_factory is MISSING for entry in fields(kind)}
    if former := next((name for name in FORMER if name in data), None):
        raise NoTrace(
            f"is of an older version of dllm ({what} has {former!r}, now {FORMER[former]!r}): record it again"
        )
    lacking = [name for name, required in is_required.items() if required and name not in data]
    if {"canvas", "nfe", "tokens"} <= data.keys():
        raise NoTrace("is not a trace of this program (it is a result, whose trace is in the folder traces beside it)")
    if lacking or ("turns" in is_required and "turns" not in data):
        raise NoTrace(f"is not a trace of this program ({what} has no {(lacking or ['turns'])[0]!r})")
    if more := [name for name in data if name not in is_required]:
        raise NoTrace(f"is of a newer version of dllm ({what} has {more[0]!r})")
    return dict(data)


def _part(kind: type[RecordType], data: Any) -> RecordType:
    return kind(**entries_of(kind, data, "a turn of it"))


def turn_of(data: Any) -> TurnRecord:
    """A turn from its data. Raises NoTrace for anything else."""
    entries = entries_of(TurnRecord, data, "a turn of it")
    return TurnRecord(
        **{
            **entries,
            "candidates": commits_of(entries["candidates"]),
            "edited": commits_of(entries.get("edited", ())),
            "block": tuple(entries["block"]),
            "guesses": _part(RecordedGuesses, entries.get("guesses", {})),
            "length": _part(LengthRecord, part) if (part := entries.get("length")) else None,
            "mixtures": _part(ShownMixtures, part) if (part := entries.get("mixtures")) else None,
            "shown": [_part(ShownTokens, part) for part in entries.get("shown", ())],
        }
    )


def commits_of(data: Iterable[Any]) -> list[Commits]:
    return [_part(Commits, entry) for entry in data]


def data_frame(what: str, rows: Sequence[Any], columns: Sequence[str]) -> DataFrame:
    """A table of ``rows``, each a mapping from columns or a tuple in their order.

    what: its caller's name, for the message. Raises UserError where pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise not_installed(what, "pandas", "frame") from None
    return pandas.DataFrame(rows, columns=list(columns))
