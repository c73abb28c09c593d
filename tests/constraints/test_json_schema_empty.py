"""Schemas that allow nothing: the refusal names the place and the keywords that exclude each other."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field

from dllm.constraints import JsonSchema, automaton_of
from dllm.errors import UserError

SHORT = {"type": "string", "minLength": 3, "maxLength": 2}


def held(inner: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a/b": inner}, "required": ["a/b"]}


EMPTY: list[tuple[Any, str]] = [
    (SHORT, "#: minLength=3 and maxLength=2 leave no string."),
    (held(SHORT), "#/properties/a~1b: minLength=3 and maxLength=2"),
    ({"type": "array", "items": SHORT, "minItems": 1}, "#/items: minLength=3 and maxLength=2"),
    ({"type": "array", "prefixItems": [True, held(SHORT)], "minItems": 2}, "#/prefixItems/1/properties/a~1b"),
    ({"$defs": {"x": SHORT}, "anyOf": [{"$ref": "#/$defs/x"}, SHORT]}, "#/$defs/x: minLength=3 and maxLength=2"),
    ({"allOf": [{"type": "string", "minLength": 5}, {"maxLength": 2}]}, "#/allOf/0: minLength=5 and maxLength=2 at "
                                                                        "#/allOf/1 leave no string"),
    ({"type": "array", "minItems": 3, "maxItems": 1}, "#: minItems=3 and maxItems=1 leave no list"),
    ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3}, "minItems=3, uniqueItems=True"),
    ({"type": "array", "items": False, "minItems": 1}, "minItems=1 and items=False"),
    ({"type": "object", "minProperties": 3, "maxProperties": 1}, "minProperties=3 and maxProperties=1 leave no object"),
    ({**held({}), "maxProperties": 0}, "required=['a/b'] and maxProperties=0"),
    ({"type": "object", "additionalProperties": False, "minProperties": 1}, "minProperties=1 and additionalProperties"),
    (held(False), "required=['a/b'] and properties leave no object with 'a/b'"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum=3 and maximum=2 leave no number"),
    ({"type": "number", "exclusiveMinimum": 3, "exclusiveMaximum": 3}, "exclusiveMinimum=3 and exclusiveMaximum=3"),
    ({"type": "integer", "minimum": 4, "maximum": 5, "multipleOf": 7}, "minimum=4, maximum=5 and multipleOf=7"),
    ({"type": ["integer", "string"], "minimum": 3, "maximum": 2, "minLength": 3, "maxLength": 2}, "minimum=3"),
    ({"enum": [1, 2], "type": "string"}, "enum=[1, 2] and type='string' leave no value"),
    ({"const": 5, "maximum": 3}, "const=5 and maximum=3"), ({"const": "x", "enum": ["y"]}, "enum=['y'] and const='x'"),
    ({"enum": ["a", 5], "maxLength": 0, "type": "string"}, "enum=['a', 5] has no value that its other keywords allow"),
    ({"type": "string", "pattern": "^abc$", "maxLength": 2}, "pattern='^abc$' and maxLength=2"),
    ({"type": "string", "format": "date", "minLength": 20}, "format='date' and minLength=20"),
    ({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "^b"}]}, "pattern='^a' and pattern='^b' at #/allOf/1"),
    ({"allOf": [{"type": "string"}, {"type": "null"}]}, "#/allOf/0: type='string' and type='null' at #/allOf/1"),
    (held({"$ref": "#"}), "it must hold itself without an end"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "says"), EMPTY)
def test_the_keywords_are_named(schema: Any, says: str) -> None:
    with pytest.raises(UserError) as refusal:
        automaton_of(JsonSchema(schema))
    assert str(refusal.value).startswith("the constraint allows no text at all: constraint.schema at #")
    assert says in str(refusal.value) and len(str(refusal.value)) < 300


def test_a_field_of_pydantics_is_named() -> None:
    class Wrong(BaseModel):
        name: str = Field(min_length=5, max_length=3)

    with pytest.raises(UserError, match="at #/properties/name: minLength=5 and maxLength=3 leave no string"):
        automaton_of(JsonSchema(Wrong))


def test_what_may_be_left_out_may_be_impossible() -> None:
    found = automaton_of(JsonSchema({"type": "object", "properties": {"a": SHORT}}))
    assert found.accepts(b"{}") and not found.accepts(b'{"a":"xx"}')


@pytest.mark.parametrize(("schema", "says"), [
    ({"type": "array", "items": {"type": "string"}, "maxItems": 10**6}, "at #: maxItems=1000000 is too much: the "
     "constraint needs more than 99 states at depth 4. Lower it, or raise constraint.limit=99 (a server takes "
     "no other)."),
    (held({"type": "integer", "multipleOf": 10**9}), "at #/properties/a~1b: multipleOf=1000000000 is too much"),
    (held({"type": "string", "pattern": "^a{1,200}$"}), "at #/properties/a~1b: pattern with a number in {}=200 is too"),
])  # fmt: skip
def test_what_takes_too_many_states_names_the_largest_number(schema: Any, says: str) -> None:
    with pytest.raises(UserError) as refusal:
        automaton_of(JsonSchema(schema, limit=99))
    assert says in str(refusal.value)
