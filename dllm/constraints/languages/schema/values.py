"""Values of JSON as they are in a schema: what they are, which are equal, and their texts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from math import isfinite
from typing import Any

from dllm.constraints.languages.json import around, behind
from dllm.constraints.languages.trees import Alt, Bytes, Cat, Rep, Tree
from dllm.constraints.languages.utf8 import literal_text

# Up to this a whole float and the integer of the same digits are equal in every parser.
EXACT = 2**53
ZEROS = Rep(Bytes(((0x30, 0x30),)))


def value_kind(value: Any) -> str:
    """The type of ``TYPES`` that a value has."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isfinite(value) and value == int(value) else "fraction"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    """Each value once, as it first occurs: 1.0 is 1, but not true."""
    unique: dict[Any, Any] = {}
    for value in values:
        unique.setdefault(value_key(value), value)
    return tuple(unique.values())


def value_key(value: Any) -> Any:
    """Equal for equal values of JSON, and hashable."""
    if isinstance(value, list):
        return tuple(map(value_key, value))
    if isinstance(value, dict):
        return frozenset((name, value_key(inner)) for name, inner in value.items())
    return (isinstance(value, bool), value)


def constant(value: Any, whitespace: str, fraction: bool = True) -> Tree:
    """The texts of one value. fraction: zeros may follow a number's point. Strings are escaped where they must be."""
    if isinstance(value, list):
        return bracket("[", [constant(entry, whitespace) for entry in value], "]", whitespace)
    if isinstance(value, dict):
        members = [member(name, constant(inner, whitespace), whitespace) for name, inner in value.items()]
        return bracket("{", members, "}", whitespace)
    if isinstance(value, str):
        return string_text(value)
    return literal_text(json.dumps(value)) if value is None or isinstance(value, bool) else _number(value, fraction)


def string_text(text: str) -> Tree:
    """A string, escaped where it must be; one with half a surrogate pair has no text."""
    try:
        return literal_text(json.dumps(text, ensure_ascii=False))
    except UnicodeEncodeError:
        return Alt()


def member(name: str, value: Tree, whitespace: str) -> Tree:
    """``"name": value``."""
    return pair(string_text(name), value, whitespace)


def pair(name: Tree, value: Tree, whitespace: str) -> Tree:
    return Cat((name, around(whitespace), literal_text(":"), behind(whitespace), value))


def comma(entry: Tree, whitespace: str) -> Tree:
    """A comma, and the entry after it."""
    return Cat((around(whitespace), literal_text(","), behind(whitespace), entry))


def bracket(opens: str, entries: list[Tree], closes: str, whitespace: str) -> Tree:
    """All these entries, between brackets."""
    rest = entries[:1] + [comma(entry, whitespace) for entry in entries[1:]]
    return (
        enclose(opens, Cat(tuple(rest)), closes, whitespace)
        if entries
        else Cat((literal_text(opens), around(whitespace), literal_text(closes)))
    )


def enclose(opens: str, inner: Tree, closes: str, whitespace: str) -> Tree:
    """Space, what is inside, space, between brackets."""
    return Cat((literal_text(opens), around(whitespace), inner, around(whitespace), literal_text(closes)))


def _number(value: int | float, fraction: bool) -> Tree:
    if value_kind(value) == "fraction":
        plain = format(Decimal(repr(value)), "f")
        return Cat((literal_text(plain), ZEROS)) if len(plain) <= 40 else literal_text(json.dumps(value))
    if abs(value) > EXACT:
        return literal_text(json.dumps(value))
    minus = Rep(literal_text("-"), 0, 1) if value == 0 else Cat()
    zeros = Rep(Cat((literal_text(".0"), ZEROS)), 0, 1) if fraction else Cat()
    return Cat((minus, literal_text(str(int(value))), zeros))
