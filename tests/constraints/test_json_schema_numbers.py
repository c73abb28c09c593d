"""Bounds and multiples with digits behind the point, against jsonschema in decimal arithmetic over all short texts."""

from __future__ import annotations

import json
import random
import re
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from harness import full
from jsonschema import Draft202012Validator

from dllm.constraints import JsonSchema, automaton_of
from dllm.errors import UserError

BOUNDS = [0, 1, -1, 15, 0.5, 0.05, -0.5, 1.5, 0.95, -0.1, 10.3, -3.55, 99.9, 0.001, 0.15]
STEPS = [1, 3, 0.5, 0.1, 0.05, 0.3, 1.5, 0.15, 0.01, 2.5]
LIMITS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
PLAIN = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?"
TEXTS = [
    text
    for size in range(1, 6 if full() else 5)
    for text in map("".join, product("0159.-e", repeat=size))
    if re.fullmatch(PLAIN + "(e-?[0-9]+)?", text)
] + ["0.25", "-0.25", "1.234", "12.34", "0.001", "0.0010", "0.35", "100.01"]


def schemas(draw: random.Random, count: int) -> list[dict[str, Any]]:
    found = []
    for _ in range(count):
        schema: dict[str, Any] = {"type": draw.choice(["number", "integer"])}
        schema |= {keyword: draw.choice(BOUNDS) for keyword in LIMITS if draw.random() < 0.4}
        found.append(schema | ({"multipleOf": draw.choice(STEPS)} if draw.random() < 0.4 else {"minimum": 0.5}))
    return found


def written(schema: dict[str, Any], text: str) -> bool:
    """Whether it has the form that numbers are written in."""
    whole = schema["type"] == "integer" or isinstance(schema.get("multipleOf"), int)
    return re.fullmatch(PLAIN, text) is not None and not (whole and "." in text)


@pytest.mark.parametrize("seed", range(20 if full() else 1))
def test_numbers_are_words_exactly_if_they_validate_as_decimals(seed: int) -> None:
    for schema in schemas(random.Random(seed), 20):
        exact = {key: Decimal(repr(value)) if isinstance(value, float) else value for key, value in schema.items()}
        judge = Draft202012Validator(exact)
        valid = {
            text for text in TEXTS if written(schema, text) and judge.is_valid(json.loads(text, parse_float=Decimal))
        }
        try:
            found = automaton_of(JsonSchema(schema))
        except UserError as error:
            assert not valid and "leave no number" in str(error), (schema, error)
            continue
        assert {text for text in TEXTS if found.accepts(text.encode())} == valid, schema


def test_whole_numbers_keep_fractional_bounds() -> None:
    found = automaton_of(JsonSchema({"type": "integer", "minimum": 0.5, "maximum": 3.5, "multipleOf": 1.5}))
    assert [number for number in range(-9, 10) if found.accepts(str(number).encode())] == [3]


def test_a_tenth_is_ten_to_the_minus_one() -> None:
    """In binary 0.3 / 0.1 is 2.9999999999999996: by its digits it is 3, in texts and in enumerations."""
    assert automaton_of(JsonSchema({"type": "number", "multipleOf": 0.1})).accepts(b"0.3")
    found = automaton_of(JsonSchema({"enum": [0.3, 0.35], "multipleOf": 0.1}))
    assert found.accepts(b"0.3") and not found.accepts(b"0.35")


@pytest.mark.parametrize(("schema", "words"), [
    ({"type": "integer", "minimum": 0.2, "maximum": 0.8}, "minimum=0.2 and maximum=0.8 leave no number"),
    ({"type": "number", "minimum": 0.11, "maximum": 0.19, "multipleOf": 0.1}, "leave no number"),
    ({"type": "number", "exclusiveMinimum": 0.5, "maximum": 0.5}, "leave no number"),
    ({"type": "number", "minimum": 5e-324}, "minimum=5e-324 is no number of at most 300 digits"),
    ({"type": "number", "maximum": 1e305}, "maximum=1e+305 is no number of at most 300 digits"),
    ({"type": "number", "multipleOf": 0.123456789}, "multipleOf=0.123456789 is too much"),
])  # fmt: skip
def test_no_number_and_too_long_ones_are_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        automaton_of(JsonSchema(schema))
