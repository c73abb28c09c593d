"""Calls of functions: a function's parameters mean among others what they mean alone, in their own draft; arguments
are an object. jsonschema judges."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from harness import full

pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install -e '.[constraints]'")

from jsonschema.validators import Draft202012Validator, validator_for
from judges import read
from tool_schemas import DRAFT7, ToolSchemas
from word_samples import drawn_words

from dllm import UserError
from dllm.parts import ByteAutomaton, Constraint, FunctionCall, JsonSchema, automaton_of

OTHER = {"name": "other", "parameters": {"properties": {"z": {"enum": ["q"]}}, "required": ["z"]}}


def words(constraint: Constraint, draw: random.Random) -> tuple[ByteAutomaton, list[str]]:
    automaton = automaton_of(constraint)
    return automaton, drawn_words(automaton, draw, 8, 60)


@pytest.mark.parametrize("seed", range(300 if full() else 10))
def test_parameters_mean_among_others_what_they_mean_alone(seed: int) -> None:
    schema, draw = ToolSchemas(seed).schema(), random.Random(seed)
    mine = {"name": "mine", "parameters": schema}
    alone, told = words(FunctionCall([mine], whitespace="one"), draw)
    among, calls = words(FunctionCall([OTHER, mine] if seed % 2 else [mine, OTHER], whitespace="one"), draw)
    judge = validator_for(schema, Draft202012Validator)(schema)
    for text in told:
        assert isinstance(json.loads(text), dict) and judge.is_valid(read(text)), (schema, text)
        assert among.accepts(f'{{"name": "mine", "arguments": {text.strip()}}}'.encode())
    seen = set()
    for text in calls:
        call = json.loads(text)
        seen.add(call["name"])
        arguments = text.partition('"arguments":')[2].rstrip()[:-1].strip()
        assert call.keys() == {"name", "arguments"} and (call["name"] == "other" or alone.accepts(arguments.encode()))
    assert seen <= {"mine", "other"}


def test_schemas_that_speak_of_no_object_mean_one() -> None:
    for schema in ({}, {"title": "t"}, {"$schema": DRAFT7}, {"type": ["object", "null"]}, {"description": "d"}):
        for function in ({"name": "f", "parameters": schema}, {"name": "f", "parameters": None}, {"name": "f"}):
            found = automaton_of(FunctionCall([function], whitespace="none"))
            assert set(drawn_words(found, random.Random(0), 5, 9)) == {"{}"}
    inner = {"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    found = automaton_of(FunctionCall([{"name": "f", "parameters": inner}], whitespace="none", depth=1))
    assert found.accepts(b'{"next":null}') and found.accepts(b'{"next":{"next":null}}') and not found.accepts(b"null")


@pytest.mark.parametrize(
    ("schema", "words_of"),
    [
        ({"type": "string"}, "allows no object"),
        ({"enum": [1]}, "allows no object"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "allows no object"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array"}}}, "allows no object"),
        ({"$ref": "#x"}, "that no $anchor gives"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, "points to nothing"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "allows no object"),
    ],
)
@pytest.mark.parametrize("others", [[], [OTHER]], ids=["alone", "among others"])
def test_parameters_that_cannot_be_are_refused_by_the_place_of_their_function(
    schema: Any, words_of: str, others: list[Any]
) -> None:
    with pytest.raises(UserError) as refused:
        automaton_of(FunctionCall([*others, {"name": "mine", "parameters": schema}]))
    said = str(refused.value)
    assert said.startswith(f"constraint.functions[{len(others)}].parameters ") and words_of in said, said


def test_a_large_number_is_named_with_its_function() -> None:
    large = {"type": "object", "properties": {"a": {"type": "array", "minItems": 600, "items": {"type": "string"}}}}
    with pytest.raises(UserError, match=r"constraint.functions\[1\].parameters at #/properties/a: minItems=600"):
        automaton_of(FunctionCall([OTHER, {"name": "mine", "parameters": large}], limit=500))


def deepest(found: ByteAutomaton, frame: str) -> int:
    """How many objects may stand in each other."""
    return max(n for n in range(9) if found.accepts((frame % ('{"t":' * n + "{}" + "}" * n)).encode()))


def test_definitions_that_contain_themselves_are_entered_as_often_as_alone() -> None:
    tree = {"type": "object", "properties": {"t": {"$ref": "#"}}}
    for depth in (0, 1, 3):
        whole = automaton_of(JsonSchema(tree, depth=depth, whitespace="none"))
        single = automaton_of(FunctionCall([{"name": "mine", "parameters": tree}], depth=depth, whitespace="none"))
        among = automaton_of(
            FunctionCall([OTHER, {"name": "mine", "parameters": tree}], depth=depth, whitespace="none")
        )
        found = deepest(whole, "%s"), deepest(single, "%s"), deepest(among, '{"name":"mine","arguments":%s}')
        assert len(set(found)) == 1, found


def test_functions_are_data_with_names_of_their_own() -> None:
    said = FunctionCall('[{"name": "f"}]')
    assert said == FunctionCall([{"name": "f", "parameters": {}, "strict": False}]) != FunctionCall([{"name": "g"}])
    for wrong, why in (
        ([], "not empty"),
        ([{"name": "f"}] * 2, "of their own"),
        ([{"nmae": "f"}], "must be a mapping"),
        ([{"name": "f", "parameters": 5}], "parameters=5 must be a JSON schema"),
        ("[", "is not JSON"),
        ([{"name": "f", "strict": 1}], "must be true or false"),
    ):
        with pytest.raises(UserError, match=why):
            FunctionCall(wrong)  # type: ignore[arg-type]
