"""Schemas of Draft 4, 6, 7 and 2019-09: what their own validators take is a word, and what they do not is none."""

from __future__ import annotations

import json
import random
from itertools import product
from typing import Any

import jsonschema
import pytest
from word_samples import drawn_words

from dllm.parts import JsonSchema, UserError, automaton_of

D4, D6, D7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 6, 7))
D2019, D2020 = (f"https://json-schema.org/draft/{year}/schema" for year in ("2019-09", "2020-12"))
INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
PAIR = {"type": "array", "items": [INTEGER, {"type": "null"}]}
SCHEMAS: list[dict[str, Any]] = [
    *({"$schema": draft, **PAIR, **more} for draft in (D4, D6, D7, D2019, D7.rstrip("#"), D7.replace("http:", "https:"))
      for more in ({"additionalItems": False}, {"additionalItems": TEXT, "minItems": 2}, {"maxItems": 3})),
    {"$schema": D7, "type": "array", "items": [], "additionalItems": INTEGER},
    {"$schema": D7, "type": "array", "items": INTEGER, "additionalItems": False},
    {"$schema": D7, "type": "array", "items": [{"$ref": "#/items/1"}, INTEGER], "additionalItems": False},
    {"$schema": D7, "definitions": {"x": PAIR}, "type": "array", "items": {"$ref": "#/definitions/x", "maxItems": 0}},
    {"$schema": D2019, "$defs": {"x": PAIR}, "type": "array", "items": {"$ref": "#/$defs/x", "maxItems": 1}},
    {"$schema": D4, "type": "integer", "minimum": 1, "exclusiveMinimum": True, "maximum": 3, "exclusiveMaximum": False},
    {"$schema": D4, "type": "integer", "exclusiveMinimum": True, "id": "http://example.org/x"},
    *({"$schema": draft, "$defs": {"x": {"$anchor": "p", "type": "array", "maxItems": 1}, "const": {"$anchor": "q"}},
       "type": "array", "items": {"$ref": "#p", "minItems": 1}} for draft in (D2019, D2020)),
    *({"$schema": draft, "definitions": {"x": {key: "#p", "type": "array", "maxItems": 1}}, "type": "array",
       "items": {"$ref": "#p"}} for draft, key in ((D4, "id"), (D6, "$id"), (D7, "$id"))),
    {"$schema": D2020, "$anchor": "list", "type": "array", "items": {"anyOf": [INTEGER, {"$ref": "#list"}]}},
    {"$schema": D2020, "$id": "http://example.org/x", "type": "array", "items": {"$ref": "http://example.org/x#p"},
     "$defs": {"a/b": {"anyOf": [TEXT, {"$dynamicAnchor": "p", "type": "null"}]},
               "other": {"$id": "http://example.org/y", "$anchor": "p", **TEXT}}},
    {"$schema": D2020, "type": "array", "items": {"$ref": "#p"}, "prefixItems": [{"const": {"$anchor": "p"}},
     {"$anchor": "p", "$ref": "#q"}], "$defs": {"q": {"$anchor": "q", **INTEGER}, "r": {"enum": ["$anchor"]}}},
    {"$schema": D7, "type": "object", "properties": {"a": INTEGER, "b": INTEGER},
     "dependencies": {"b": ["a"], "a": {"properties": {"a": {"const": 1}}}}},
]  # fmt: skip
SCALARS = [1, 2, 3, None, "x"]
VALUES: list[Any] = [
    *SCALARS,
    *(list(values) for size in range(4) for values in product([1, None, "x"], repeat=size)),
    *([list(values)] for size in range(3) for values in product([1, None, "x"], repeat=size)),
    {},
    {"a": 1},
    {"a": 2},
    {"b": 1},
    {"a": 1, "b": 1},
    {"a": 2, "b": 1},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[12:])
def test_words_are_what_the_draft_takes(schema: dict[str, Any]) -> None:
    named = schema["$schema"].replace("https://json-schema.org/draft-", "http://json-schema.org/draft-")
    found, known = automaton_of(JsonSchema(schema, depth=1)), {**schema, "$schema": named}
    judge = jsonschema.validators.validator_for(known)(known)
    for value in VALUES:
        if judge.is_type(value, schema["type"]):
            assert found.accepts(json.dumps(value).encode()) == judge.is_valid(value), value
    for word in drawn_words(found, random.Random(0), 20, 12):
        assert judge.is_valid(json.loads(word)), word


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (
            PAIR,
            "at #/items: this is no JSON schema (Draft 2020-12): [{'type': 'integer'}, {'type': 'null'}] is not of "
            "type 'object', 'boolean'. Write prefixItems, or name an older draft: without $schema it is 2020-12.",
        ),
        ({"minimum": 1, "exclusiveMinimum": True}, "Write the bound itself, or name Draft 4"),
        ({"additionalItems": False}, "Write items beside prefixItems, or name an older draft by $schema."),
        ({"dependencies": {"a": ["b"]}}, "or name an older draft by $schema."),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "at #/$schema: Draft 3 is not supported."),
        ({"$schema": D7, "items": 3}, "at #/items: this is no JSON schema"),
    ],
)
def test_an_older_draft_must_be_named(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as refusal:
        automaton_of(JsonSchema(schema))
    assert says in str(refusal.value)
