"""Fields that nobody here knows. One that looks like a known one is a slip and is refused; another is passed over, and
the reply and the log say so."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

from dllm.errors import nearest
from dllm.serve.api_errors import ApiError

_MOST = 16  # different names that one request may have passed over: each is compared with some 200 known ones
_LONGEST = 64  # characters of a name that may be a slip
_PLAIN = re.compile(r"[A-Za-z][\w.:-]*", re.ASCII)  # what programs call fields; anything else is no version of a field
_FOUND: ContextVar[dict[str, str] | None] = ContextVar("unknown_fields", default=None)


@contextmanager
def passing(wanted: bool) -> Iterator[dict[str, str]]:
    """Unknown fields are passed over from here on, and where each name stood first is found in what this gives. wanted
    False: they are refused."""
    outer = _FOUND.get()
    found: dict[str, str] = {} if outer is None else outer
    token = _FOUND.set(found if wanted else None)
    try:
        yield found
    finally:
        _FOUND.reset(token)


def pass_or_refuse(name: str, place: str, sentence: str, hint: str = "") -> None:
    """Pass over the field ``name`` at ``place``. Raises ApiError with ``sentence`` and ``hint`` where there is a hint,
    where nothing is passed over, and for too many of them."""
    found = _FOUND.get()
    if hint or found is None or not _PLAIN.fullmatch(name):
        raise ApiError(400, f"{sentence}{hint or '.'}", place, "unknown_field")
    if name not in found and len(found) == _MOST:
        sentence = f"{sentence}, and more than {_MOST} others are unknown, too. Drop them."
        raise ApiError(400, sentence, place, "unknown_field")
    found.setdefault(name, place)


def slip_of(name: str, known: tuple[str, ...]) -> str:
    """`` Did you mean 'x'?`` of a name that looks like a known one, else nothing."""
    return "" if len(name) > _LONGEST else _nearest(name, known)


@lru_cache(4096)  # a name is kept with its answer, so it must be short
def _nearest(name: str, known: tuple[str, ...]) -> str:
    return nearest(name, known)


def note_of(places: Sequence[str]) -> str:
    """What the reply says of the fields that were passed over."""
    names = ", ".join(place if len(place) <= _LONGEST else f"{place[:_LONGEST]}..." for place in places)
    return f"Not known here, and passed over: {names}."
