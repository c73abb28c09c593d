"""How many members an object has: jsonschema over small objects, for bounds beside what is required."""

from __future__ import annotations

import json
from itertools import combinations, product
from typing import Any

from jsonschema import Draft202012Validator

from dllm.constraints.languages.automaton_of import compiled
from dllm.constraints.languages.schema import schema_language
from dllm.errors import UserError

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
            found = compiled(schema_language(schema))
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
