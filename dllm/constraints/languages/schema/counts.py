"""The numbers of a schema that take states, to name the largest where there are too many."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dllm.constraints.languages.schema.numbers import as_fraction
from dllm.constraints.languages.schema.places import pointer_part

_COUNTING = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "multipleOf")
_VALUES = ("enum", "const", "default", "examples")
_BLAMED = 50  # with smaller numbers it is not a number that makes a schema large


def largest_count(schema: Any) -> tuple[str, str, float] | None:
    """The largest number that is counted: the place of its schema, its keyword, and the number. None: all are small."""
    counts: list[tuple[int, str, str, float]] = []
    waiting: list[tuple[str, Any]] = [("#", schema)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, list):
            waiting += [(f"{place}/{index}", each) for index, each in enumerate(value)]
        for key, inner in value.items() if isinstance(value, Mapping) else ():
            if key in _COUNTING and isinstance(inner, int | float):
                size = as_fraction(inner).numerator if key == "multipleOf" else int(inner)
                counts.append((size, place, key, inner))
            elif key == "pattern" and isinstance(inner, str):
                numbers = map(int, re.findall(r"[0-9]{1,20}", " ".join(re.findall(r"\{([0-9,]+)\}", inner))))
                largest = max(numbers, default=0)
                counts.append((largest, place, "pattern with a number in {}", largest))
            elif key not in _VALUES:
                waiting.append((f"{place}/{pointer_part(key)}", inner))
    size, place, key, number = max(counts, default=(0, "", "", 0))
    return (place, key, number) if size >= _BLAMED else None
