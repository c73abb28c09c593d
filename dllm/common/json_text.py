"""JSON as the text that it is: parts of it are handed on as they were written, not as Python would read them."""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any, NoReturn

MOST_DIGITS = 4000  # of a whole number; Python reads 4,300 at most
_SPACE = re.compile(r"[ \t\n\r]*")
_ESCAPES = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<half>u[dD][89a-fA-F]..)|.)", re.DOTALL)
_HALVES = re.compile("[\ud800-\udfff]")


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number of JSON")


# Numbers stay text: Python has no 1e999, and a whole number of 5,000 digits is refused by ``int``.
_DECODER = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=_no_number)


def _value(text: str, begin: int) -> tuple[Any, int]:
    """The value that begins there, and where it ends. Raises ValueError."""
    try:
        return _DECODER.raw_decode(text, begin)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _past(text: str, begin: int) -> int:
    """Where the white space ends that begins there."""
    space = _SPACE.match(text, begin)
    assert space is not None, "it matches no space, too"
    return space.end()


def end_of_value(text: str, begin: int) -> int:
    """Where the JSON value ends, with white space around, that begins there; ``begin`` if none does."""
    try:
        return _past(text, _value(text, _past(text, begin))[1])
    except ValueError:
        return begin


def members(text: str) -> dict[str, str]:
    """The members of an object, each as the text that it has there; of equal names the last. Raises ValueError for a
    text that is not a JSON object.

    >>> members('{"x": 1e999, "y": "\\\\ud83d"}')
    {'x': '1e999', 'y': '"\\\\ud83d"'}
    """
    value, end = _value(text, at := _past(text, 0))
    if not isinstance(value, dict) or _past(text, end) != len(text):
        raise ValueError("it is not a JSON object")
    texts: dict[str, str] = {}
    at = _past(text, at + 1)
    while text[at] != "}":
        name, at = _value(text, at)
        begin = _past(text, _past(text, at) + 1)  # after the colon
        _, at = _value(text, begin)
        texts[name] = text[begin:at]
        at = _past(text, at)
        at = _past(text, at + 1) if text[at] == "," else at
    return texts


def as_object(text: str) -> str | None:
    """The JSON object that a text is, as it is written there; that of a JSON string its content, as some write
    objects; without a value (nothing, ``null``) ``{}``. None: it is not an object."""
    text = text.strip(" \t\n\r")
    if text in ("", "null", '""'):
        return "{}"
    try:
        if text.startswith('"'):
            inner, end = _value(text, 0)
            text = escaped(inner) if end == len(text) else ""
        members(text)
    except ValueError:
        return None
    return text.strip(" \t\n\r")


def escaped(text: str) -> str:
    """JSON without half a surrogate pair, which no UTF-8 can write: each as its escape."""
    return _HALVES.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def loaded(text: str) -> Any:
    """The value of a JSON text for a reader of Python's values. A number that Python cannot hold becomes the text that
    it is, half a surrogate pair its escape.

    >>> loaded('{"x": [1e999, "\\\\ud83d"]}')
    {'x': ['1e999', '\\\\ud83d']}
    """
    return json.loads(_ESCAPES.sub(_kept, text), parse_float=_real, parse_int=_whole)


def _kept(escape: re.Match[str]) -> str:
    return escape[0] if escape["half"] is None else f"\\{escape[0]}"


def _real(text: str) -> float | str:
    return number if isfinite(number := float(text)) else text


def _whole(text: str) -> int | str:
    return int(text) if len(text) <= MOST_DIGITS else text
