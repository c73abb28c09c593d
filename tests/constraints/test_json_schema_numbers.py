"""Bounds and multiples with digits behind the point, against jsonschema in decimal arithmetic over all short texts."""

from __future__ import annotations

import json
import random
import re
from decimal import Decimal
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import pytest
from harness import full
from jsonschema import Draft202012Validator

from dllm.parts import JsonSchema, Range, UserError, automaton_of, schema_language, to_automaton

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


def test_a_range_holds_a_number_exactly_if_one_is_found() -> None:
    """Against all 24ths between -3 and 3: bounds and multiples are coarser."""
    numbers = [Fraction(count, 24) for count in range(-72, 73)]
    bounds = (None, Fraction(-1), Fraction(0), Fraction(1, 2), Fraction(1), Fraction(3, 2))
    multiples = (None, *map(Fraction, ("1/2", "1/3", "3/4", "1", "2")))
    for low, high, over, under, multiple in product(bounds, bounds, (False, True), (False, True), multiples):
        inside = [
            number
            for number in numbers
            if (low is None or number > low or (number == low and not over))
            and (high is None or number < high or (number == high and not under))
            and (multiple is None or (number / multiple).denominator == 1)
        ]
        whole = [number for number in inside if number.denominator == 1]
        found = Range(low, high, over, under, multiple)
        assert found.holds("integer") == bool(whole), found
        assert found.holds("fraction") == (len(whole) < len(inside)), found


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
            assert not valid and "allows no text" in str(error), (schema, error)
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


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 0.2, "maximum": 0.8}, "allows no text"),
        ({"type": "number", "minimum": 0.11, "maximum": 0.19, "multipleOf": 0.1}, "allows no text"),
        ({"type": "number", "exclusiveMinimum": 0.5, "maximum": 0.5}, "allows no text"),
        ({"type": "number", "minimum": 5e-324}, "minimum=5e-324 is not a number of at most 300 digits"),
        ({"type": "number", "maximum": 1e305}, "maximum=1e+305 is not a number of at most 300 digits"),
        ({"type": "number", "multipleOf": 0.123456789}, "multipleOf=0.123456789 is too much"),
    ],
)
def test_no_number_and_too_long_ones_are_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        automaton_of(JsonSchema(schema))


SHORT = {"type": "string", "minLength": 3, "maxLength": 2}


def held(inner: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a/b": inner}, "required": ["a/b"]}


EMPTY: list[Any] = [
    SHORT,
    held(SHORT),
    {"type": "array", "items": SHORT, "minItems": 1},
    {"type": "array", "prefixItems": [True, held(SHORT)], "minItems": 2},
    {"$defs": {"x": SHORT}, "anyOf": [{"$ref": "#/$defs/x"}, SHORT]},
    {"allOf": [{"type": "string", "minLength": 5}, {"maxLength": 2}]},
    {"type": "array", "minItems": 3, "maxItems": 1},
    {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3},
    {"type": "array", "items": False, "minItems": 1},
    {"type": "object", "minProperties": 3, "maxProperties": 1},
    {**held({}), "maxProperties": 0},
    {"type": "object", "additionalProperties": False, "minProperties": 1},
    held(False),
    {"type": "integer", "minimum": 3, "maximum": 2},
    {"type": "number", "exclusiveMinimum": 3, "exclusiveMaximum": 3},
    {"type": "integer", "minimum": 4, "maximum": 5, "multipleOf": 7},
    {"type": ["integer", "string"], "minimum": 3, "maximum": 2, "minLength": 3, "maxLength": 2},
    {"enum": [1, 2], "type": "string"},
    {"const": 5, "maximum": 3},
    {"const": "x", "enum": ["y"]},
    {"enum": ["a", 5], "maxLength": 0, "type": "string"},
    {"type": "string", "pattern": "^abc$", "maxLength": 2},
    {"type": "string", "format": "date", "minLength": 20},
    {"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "^b"}]},
    {"allOf": [{"type": "string"}, {"type": "null"}]},
    held({"$ref": "#"}),
]


@pytest.mark.parametrize("schema", EMPTY)
def test_a_schema_without_a_value_is_refused(schema: Any) -> None:
    with pytest.raises(UserError, match="the constraint allows no text at all: no value fulfils all keywords"):
        automaton_of(JsonSchema(schema))


def test_what_may_be_left_out_may_be_impossible() -> None:
    found = automaton_of(JsonSchema({"type": "object", "properties": {"a": SHORT}}))
    assert found.accepts(b"{}") and not found.accepts(b'{"a":"xx"}')


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (
            {"type": "array", "items": {"type": "string"}, "maxItems": 10**6},
            "at #: maxItems=1000000 is too much: the "
            "constraint needs more than 99 states at depth 4. Lower it, or raise constraint.limit=99 (a server takes "
            "no other).",
        ),
        (held({"type": "integer", "multipleOf": 10**9}), "at #/properties/a~1b: multipleOf=1000000000 is too much"),
        (
            held({"type": "string", "pattern": "^a{1,200}$"}),
            "at #/properties/a~1b: pattern with a number in {}=200 is too",
        ),
    ],
)
def test_what_takes_too_many_states_names_the_largest_number(schema: Any, says: str) -> None:
    with pytest.raises(UserError) as refusal:
        automaton_of(JsonSchema(schema, limit=99))
    assert says in str(refusal.value)


OBJECTS = [dict.fromkeys(names, 1) for size in range(4) for names in combinations(["a", "b", "c"], size)]


def test_bounds_of_members_are_jsonschemas() -> None:
    tried = 0
    for required, low, high, listed, more in product(
        ([], ["a"], ["a", "b"]), (0, 1, 2), (None, 0, 1, 2), (0, 1, 2), (False, True)
    ):
        one = {"type": "integer"}
        schema: dict[str, Any] = {
            "type": "object",
            "properties": dict.fromkeys("ab"[:listed], one),
            "required": required,
        }
        schema |= {"additionalProperties": one if more else False, "minProperties": low}
        schema |= {} if high is None else {"maxProperties": high}
        try:
            found = to_automaton(schema_language(schema))
        except UserError:
            continue
        tried += 1
        judge = Draft202012Validator(schema)
        for value in OBJECTS:
            text = json.dumps(value)
            assert not found.accepts(text.encode()) or judge.is_valid(value), (schema, text)
            whole = judge.is_valid(value) and set(value) <= set("ab"[:listed])
            assert not whole or found.accepts(text.encode()), (schema, text)
    assert tried > 60
