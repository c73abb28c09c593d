"""Whether a value that a user wrote is of the kind that an annotation names, and that kind in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dllm.errors import UserError

Test = Callable[[Any], bool]


def whole(value: Any) -> bool:
    """Not ``true``, which Python counts among the whole numbers."""
    return type(value) is int


def number(value: Any) -> bool:
    """Any but nan, which no range refuses and no comparison finds."""
    return type(value) in (int, float) and value == value


def text(value: Any) -> bool:
    return isinstance(value, str)


def listed(entry: Test) -> Test:
    return lambda value: isinstance(value, Sequence) and not isinstance(value, str) and all(map(entry, value))


# By the words of an annotation, such as ``int | None``.
KINDS: dict[str, tuple[Test, str]] = {
    "int": (whole, "a whole number"), "float": (number, "a number"), "str": (text, "text"),
    "bool": (lambda value: isinstance(value, bool), "true or false"), "None": (lambda value: value is None, "null"),
    "Sequence[int]": (listed(whole), "a list of whole numbers"), "Sequence[str]": (listed(text), "a list of texts"),
    "Sequence[float]": (listed(number), "a list of numbers"), "list[str]": (listed(text), "a list of texts"),
    "Sequence[Sequence[int]]": (listed(listed(whole)), "a list of lists of token ids"),
    "dict[str, Tensor]": (lambda value: isinstance(value, Mapping), "tensors by name"),
}  # fmt: skip


def of_kind(name: str, value: Any, annotation: Any, such_as: Any = None) -> Any:
    """``value`` as ``annotation`` wants it: a whole number counts as a number, a number as text where none is meant.

    such_as: a sound value, for the sentence. Annotations that are neither numbers, text nor lists of them take whatever
    is none of these either. Raises UserError, naming the option, its value and the kind.
    """
    words = _words(annotation)
    known = [KINDS[word] for word in words if word in KINDS]
    if any(test(value) for test, _ in known):
        return float(value) if whole(value) and "float" in words and "int" not in words else value
    if number(value) and "str" in words:
        return str(value)
    if words in (["list[str]"], ["Sequence[str]"]) and listed(lambda entry: text(entry) or number(entry))(value):
        return [str(entry) for entry in value]
    if len(known) < len(words) and not isinstance(value, str | int | float | None):
        return value
    rule = " or ".join(kind for _, kind in known) or f"a part, chosen by {name.replace('.', '/')}=NAME"
    example = f", such as {such_as}" if number(such_as) and not isinstance(value, list) else ""
    raise UserError(f"{name}={value!r} must be {rule}{example}.")


def _words(annotation: Any) -> list[str]:
    """``int | None`` as its two words, also where it is no text but a type."""
    written = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return [re.sub(r"\b[\w.]+\.(?=\w)", "", word).strip() for word in re.split(r" \| (?![^\[]*\])", written)]
