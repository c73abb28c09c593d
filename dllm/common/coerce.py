"""Checks a value that a user wrote against the annotation of the argument it is for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

from dllm.common.errors import Refusal, UserError

KindTest = Callable[[Any], bool]


def is_whole(value: Any) -> bool:
    """An int, and not a bool, which Python counts as one."""
    return type(value) is int


def is_number(value: Any) -> bool:
    """An int or float, and not nan, which no comparison of a range refuses."""
    return type(value) in (int, float) and value == value


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_list_of(entry: KindTest) -> KindTest:
    """The test of a sequence whose entries pass ``entry``."""
    return lambda value: isinstance(value, Sequence) and not isinstance(value, str) and all(map(entry, value))


PER_REQUEST = "PerRequest"  # the annotation of an option that may differ by request (``dllm.contract.canvas``)
_EVALUATED = {"float", "Sequence[float]", "Tensor"}  # the kinds that the name is written for
MAPPING = "Mapping[str, Any]"  # the annotation of an option that is a mapping itself
_NUMBERS, _TEXTS = (is_list_of(is_number), "a list of numbers"), (is_list_of(is_text), "a list of texts")
# By the words of an annotation, such as ``int | None``: the test, and the kind as messages call it.
VALUE_KINDS: dict[str, tuple[KindTest, str]] = {
    "int": (is_whole, "a whole number"),
    "float": (is_number, "a number"),
    "str": (is_text, "text"),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "None": (lambda value: value is None, "null"),
    "Sequence[int]": (is_list_of(is_whole), "a list of whole numbers"),
    "Sequence[float]": _NUMBERS,
    "Sequence[str]": _TEXTS,
    "list[str]": _TEXTS,
    "Sequence[Sequence[int]]": (is_list_of(is_list_of(is_whole)), "a list of lists of token ids"),
    MAPPING: (lambda value: isinstance(value, Mapping), "a mapping"),
    "type": (lambda value: isinstance(value, type), "a class"),
    "dict[str, Tensor]": (lambda value: isinstance(value, Mapping), "tensors by name"),
}


def coerce(name: str, value: Any, annotation: Any, example: Any = None) -> Any:
    """``value`` as ``annotation`` wants it: an int becomes a float, and a number becomes text, where only these fit.

    example: a valid value, for the message. An annotation that names other kinds than ``VALUE_KINDS`` accepts every
    value that is neither text nor a number. Raises UserError, naming the option, its value and the kind.
    """
    words = words_of(annotation)
    if PER_REQUEST in words:  # a number of the example's kind, or one for each request
        if not isinstance(value, str | int | float | Mapping | None):
            return value
        words = [type(example).__name__ if word == PER_REQUEST else word for word in words]
    kinds = [VALUE_KINDS[word] for word in words if word in VALUE_KINDS]
    if any(test(value) for test, _ in kinds):
        return float(value) if is_whole(value) and "float" in words and "int" not in words else value
    if is_number(value) and "str" in words:
        return str(value)
    texts_or_numbers = is_list_of(lambda entry: is_text(entry) or is_number(entry))
    if words in (["list[str]"], ["Sequence[str]"]) and texts_or_numbers(value):
        return [str(entry) for entry in value]
    if len(kinds) < len(words) and not isinstance(value, str | int | float | None):
        return value
    rule = " or ".join(kind for _, kind in kinds) or f"a part, chosen by {{{name.replace('.', '/')}=NAME}}"
    such_as = f", such as {example}" if is_number(example) and not isinstance(value, list) else ""
    raise Refusal(f"{{{name}:quoted}} must be {rule}{such_as}.", [value])


def words_of(annotation: Any) -> list[str]:
    """``int | None`` and ``Optional[int]`` as their two words. The annotation is text, or what Python makes of it in a
    module without ``from __future__ import annotations``: a type, or a union of them."""
    if get_origin(annotation) in (Union, UnionType):
        words = [word for entry in get_args(annotation) for word in words_of(entry)]
        return [*(word for word in words if word not in _EVALUATED), PER_REQUEST] if set(words) >= _EVALUATED else words
    is_type = isinstance(annotation, type) and not get_args(annotation)
    text = annotation.__name__ if is_type else re.sub(r"[\w.]*Literal\[['\"][^]]*\]", "str", str(annotation))
    words = [re.sub(r"\b[\w.]+\.(?=\w)", "", word).strip() for word in re.split(r" \| (?![^\[]*\])", text)]
    words = [kind for word in words for kind in re.sub(r"^Optional\[(.+)\]$", r"\1|None", word).split("|")]
    return ["None" if word == "NoneType" else word for word in words]


_HALVES = re.compile("[\ud800-\udfff]")  # of surrogate pairs: in JSON as \ud83d, or in place of a byte outside UTF-8


def unwritable(text: str) -> str | None:
    """What is wrong with a text that no UTF-8 can write, as the end of a sentence. None: it can be written."""
    return "holds half of a surrogate pair, which is not a character" if _HALVES.search(text) else None


def refuse_unwritable(what: str, text: str) -> None:
    """Raise UserError for a text that no UTF-8 can write. what: its name in the sentence."""
    if (problem := unwritable(text)) is not None:
        sample = ascii(text if len(text) <= 60 else f"{text[:60]}...")
        raise UserError(f"{what} {sample} {problem}. Write the whole character, or drop it.")
