"""JSON Schema: every word validates under jsonschema (law 2), and of plain schemas every valid text is a word."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import pytest
from harness import full
from jsonschema import Draft202012Validator
from judges import FORMATS, read
from random_schemas import NAMES, SCALARS, Schemas
from word_samples import drawn_words

from dllm.parts import (
    ByteAutomaton,
    CompileLimits,
    JsonSchema,
    UserError,
    automaton_of,
    schema_language,
    to_automaton,
    within_limits,
)


def automaton(schema: Any, **options: Any) -> ByteAutomaton:
    with within_limits(CompileLimits(depth=options.get("depth", 4))):
        return to_automaton(schema_language(schema, **options))


def compiled_ones(seeds: range) -> Iterator[tuple[Any, dict[str, Any], ByteAutomaton]]:
    """Of random schemas those that compile, with options drawn for each."""
    for seed in seeds:
        draw = random.Random(seed)
        schema = Schemas(seed).root()
        options = {
            "strict": draw.random() < 0.5,
            "additional": draw.random() < 0.5,
            "depth": draw.choice([0, 1, 2]),
            "whitespace": draw.choice(["any", "one", "none"]),
        }
        try:
            yield schema, options, automaton(schema, **options)
        except UserError as error:
            assert str(error).startswith(("constraint.schema", "the constraint "))


@pytest.mark.daily(5)
@pytest.mark.parametrize("part", range(10))
def test_every_random_word_of_random_schemas_validates(part: int) -> None:
    each, words, compiled_count = 300 if full() else 30, 0, 0
    for schema, options, found in compiled_ones(range(part * each, (part + 1) * each)):
        compiled_count += 1
        judge = Draft202012Validator(schema, format_checker=FORMATS)
        draw = random.Random(part)
        for length in (0, 8, 30):
            for word in drawn_words(found, draw, 8 if full() else 3, length):
                words += 1
                assert judge.is_valid(read(word)), (schema, options, word)
    assert compiled_count > 0.55 * each and words > 3 * each


def plain_schemas(draw: random.Random) -> Iterator[dict[str, Any]]:
    """Of one type, or of a list of values, with keywords beside it."""
    make = Schemas(draw.randrange(10**6))
    for _ in range(20):
        yield draw.choice([make.number, make.string, make.listed])(0, [])


TEXTS = [json.dumps(value, ensure_ascii=False) for value in SCALARS] + [
    *("".join(parts) for parts in product(["", "-"], map(str, range(0, 300, 3)), ["", ".0", ".5", ".25"])),
    *(json.dumps("".join(signs), ensure_ascii=False) for size in range(5) for signs in product("a1é\n", repeat=size)),
]


def outside(schema: dict[str, Any], text: str) -> bool:
    """Valid or not, texts that are never written: whole numbers with a point where only integers or multiples fit; and
    those that Python's ``$`` takes for ended before a last line break, which no other ``$`` does."""
    types = schema.get("type", ["number"])
    whole = "integer" in types and "number" not in types
    whole |= "multipleOf" in schema and not {"enum", "const"} & schema.keys()
    return isinstance(json.loads(text), float) and whole or ("$" in schema.get("pattern", "") and text.endswith('\\n"'))


@pytest.mark.parametrize("seed", range(40 if full() else 2))
def test_scalars_are_words_exactly_if_they_validate(seed: int) -> None:
    for schema in plain_schemas(random.Random(seed)):
        try:
            found = automaton(schema)
        except UserError:
            continue
        judge = Draft202012Validator(schema, format_checker=FORMATS)
        for text in TEXTS:
            if not outside(schema, text):
                assert found.accepts(text.encode()) == judge.is_valid(json.loads(text)), (schema, text)


def test_listed_objects_are_words_exactly_if_the_other_keywords_allow_them() -> None:
    """Against jsonschema: each member by its property, by its pattern, or by what other members may be."""
    listed = [
        dict(zip(names, values, strict=True))
        for size in range(3)
        for names in combinations(("a", "b", "c"), size)
        for values in product([1, None, "x"], repeat=size)
    ]
    schema = {"enum": listed, "properties": {"a": {"type": "integer"}}, "patternProperties": {"^b": {"type": "null"}},
              "additionalProperties": {"type": "string"}}  # fmt: skip
    found, judge = automaton(schema), Draft202012Validator(schema)
    for value in listed:
        assert found.accepts(json.dumps(value).encode()) == judge.is_valid(value), value


def test_members_are_words_exactly_if_they_validate_in_their_order() -> None:
    """Objects of up to three members, against jsonschema and the order of properties."""
    schemas: list[dict[str, Any]] = [
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["b"]},
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "minProperties": 1},
        {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 1},
        {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "dependentRequired": {"c": ["a"], "a": ["b"]}},
        {"type": "object", "properties": {"a": {}, "b": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {"a": {}}, "patternProperties": {"^[ab]": {"type": "integer"}}},
        {"type": "object", "patternProperties": {"a|b": {"type": "integer"}, "b": {"const": 1}}, "maxProperties": 2},
        {"type": "object", "properties": {"a": {}, "b": {}, "c": {}},
         "dependentSchemas": {"c": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "b": False}},
        {"type": "object", "properties": {"a": {}}, "allOf": [{"$ref": "#/$defs/b"}, {"patternProperties": {"c": {}}}],
         "$defs": {"b": {"properties": {"b": {"type": "null"}}, "oneOf": [{"minProperties": 1}, False]}},
         "unevaluatedProperties": {"type": "integer"}},
        {"type": "object", "allOf": [{"properties": {"a": {}, "b": {}}, "unevaluatedProperties": {"type": "integer"}}],
         "unevaluatedProperties": False},
        {"type": "object", "properties": {"a": {}}, "not": False},
        {"type": "object", "properties": {"a": {}, "b": {}}, "not": {"type": "array"},
         "oneOf": [{"required": ["a"], "properties": {"a": {"const": 1}}},
                   {"required": ["a"], "properties": {"a": {"type": "null"}}}]},
    ]  # fmt: skip
    for schema in schemas:
        found, judge = automaton(schema, additional=True), Draft202012Validator(schema)
        order = [*schema.get("properties", {}), *"abcd"]
        for size in range(4):
            for names in product("abcd", repeat=size):
                if list(names) != sorted(set(names), key=order.index):
                    continue
                for values in product([1, None, "x"], repeat=size):
                    value = dict(zip(names, values, strict=True))
                    assert found.accepts(json.dumps(value).encode()) == judge.is_valid(value), (schema, value)


def test_lists_are_words_exactly_if_they_validate() -> None:
    few = {"enum": [1, "a", None]}
    schemas: list[dict[str, Any]] = [
        {"type": "array", "items": few, "minItems": 1, "maxItems": 3},
        {"type": "array", "items": few, "uniqueItems": True},
        {"type": "array", "items": few, "uniqueItems": True, "minItems": 2, "maxItems": 2},
        {"type": "array", "prefixItems": [{"const": "a"}, few], "items": {"type": "boolean"}, "uniqueItems": True},
        {"type": "array", "prefixItems": [{"type": "integer"}, few], "items": False},
        {"type": "array", "prefixItems": [{"type": "integer"}, few], "minItems": 1},
        {"type": "array", "prefixItems": [few, False], "items": few},
        {
            "type": "array",
            "prefixItems": [few],
            "allOf": [{"prefixItems": [True, {"const": 1}]}],
            "unevaluatedItems": {"type": "boolean"},
        },
        {"type": "array", "allOf": [{"items": {"type": "integer"}}], "unevaluatedItems": False},
        {"allOf": [{"type": "array", "items": few}, {"items": {"type": ["integer", "null"]}, "minItems": 2}]},
    ]
    for schema in schemas:
        found, judge = automaton(schema), Draft202012Validator(schema)
        for size in range(5):
            for values in product([1, "a", None, True], repeat=size):
                text = json.dumps(values).encode()
                assert found.accepts(text) == judge.is_valid(list(values)), (schema, values)


def says(schema: Any, **options: Any) -> str:
    with pytest.raises(UserError) as refusal:
        automaton_of(JsonSchema(schema, **options))
    return str(refusal.value)


REFUSALS: list[tuple[Any, str]] = [
    ({"properties": {"a/b": {"if": {}, "then": {}}}}, "constraint.schema at #/properties/a~1b: the keyword 'if' is"),
    ({"items": {"minItems": 0.5}}, "at #/items"),
    ({"required": ["a"]}, "at #: required names 'a', which is not in properties"),
    ({"pattern": "a(?=b)"}, "at #: the pattern 'a(?=b)' looks ahead or behind"),
    ({"$ref": "http://example.com/x"}, "$ref 'http://example.com/x' leads outside"),
    ({"$ref": "#nam", "$defs": {"a": {"$anchor": "name"}}}, "a name that no $anchor gives. Did you mean 'name'?"),
    ({"$ref": "#name", "$defs": {"name": {}}}, "no $anchor gives. Did you mean '#/$defs/name'?"),
    ({"$ref": "#p", "$defs": {"x": {"$id": "http://x/y", "$anchor": "p"}}}, "leads to a name that no $anchor gives."),
    ({"items": {"$anchor": "p"}, "$anchor": "p"}, "at #/items: the anchor 'p' is also that of #. Rename one."),
    ({"$dynamicRef": "#p", "$dynamicAnchor": "p"}, "at #: the keyword '$dynamicRef' is not supported. Use $ref with"),
    ({"$ref": "#/$defs/nam", "$defs": {"name": {}}}, "points to nothing. Did you mean '#/$defs/name'?"),
    ({"$ref": "#/$defs/a/enum", "$defs": {"a": {"enum": [1]}}}, "$ref '#/$defs/a/enum' points to no schema."),
    ({"$defs": {"x": {"$id": "http://x/y", "$defs": {"y": {}}}}, "$ref": "#/$defs/x/$defs/y"}, "$id"),
    ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "begins with itself"),
    ({"allOf": [{"prefixItems": [True, {"const": 1}]}, {"items": {"type": "null"}}]}, "items does not see place 0"),
    ({"allOf": [{"properties": {"a": {}}}, {"unevaluatedProperties": False}]}, "unevaluatedProperties does not see"),
    ({"anyOf": [{"properties": {"a": {}}}, True], "unevaluatedProperties": False}, "not supported beside properties"),
    ({"if": {"items": True}, "unevaluatedItems": False}, "at #: unevaluatedProperties and unevaluatedItems are not"),
    ({"unevaluatedItems": {"foo": 1}}, "at #/unevaluatedItems: the keyword 'foo' is unknown"),
    ({"oneOf": [{"minimum": 13}, {"type": "object"}]}, "oneOf: cases 0 and 1 may share a value"),
    ({"not": True}, "the keyword 'not' is not supported but over type, enum and const"),
    ({"not": {"const": [1]}}, "'not' is not supported over values of type array"),
    ({"type": "object", "discriminator": {"propertyName": "a"}}, "'discriminator' is not supported"),
    ({"$recursiveAnchor": True}, "at #: the keyword '$recursiveAnchor' is not supported"),
    ({"required": "a"}, "at #/required: this is no JSON schema (Draft 2020-12): 'a' is not of type 'array'"),
    ({"properties": {"a": {"type": "int"}}}, "at #/properties/a/type: this is no JSON schema"),
    ({"items": [{}]}, "at #/items: this is no JSON schema"),
    ({"$defs": {"a": 3}}, "at #/$defs/a: this is no JSON schema"),
    ({"x": {"minLength": "3"}, "$ref": "#/x"}, "at #/x/minLength: this is no JSON schema"),
    (False, "the constraint allows no text at all"),
]


@pytest.mark.parametrize(("schema", "words"), REFUSALS)
def test_refusals_name_the_place(schema: Any, words: str) -> None:
    assert words in says(schema, strict=schema is False or "x" not in schema)


def test_cases_told_apart_among_objects_write_no_other_type() -> None:
    """A text would be valid in both cases, though each by itself writes objects only."""
    tagged = [{"properties": {"kind": {"const": tag}}, "required": ["kind"]} for tag in "uv"]
    found = automaton({"allOf": [{"type": ["string", "object"]}, {"oneOf": tagged}]})
    assert found.accepts(b'{"kind": "u"}') and not found.accepts(b'"x"')


def test_strict_false_passes_over_what_the_standard_does() -> None:
    schema = {"type": "string", "format": "hostname", "maxlength": 3, "minimum": 3}
    assert automaton(schema, strict=False).accepts(b'"any"')
    assert automaton({"required": ["a"]}, strict=False).accepts(b'{"a": [1]}')
    assert "'hostname'" in says({"type": "string", "format": "hostname"})


def test_without_jsonschema_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from dllm.constraints.languages.schema import drafts

    drafts._keywords.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "jsonschema", None)
    assert "[constraints]'" in says({"type": "null"})


def test_names_under_patterns_are_written_once_and_never_escaped() -> None:
    schema = {"type": "object", "properties": {NAMES[4]: {}}, "additionalProperties": {"type": "null"}}
    found = automaton(schema, whitespace="none")
    assert found.accepts(b'{"q\\"":1,"z":null}') and not found.accepts(b'{"\\u007a":null}')
