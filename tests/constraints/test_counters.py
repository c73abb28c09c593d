"""Counted strings and lists: the same language as with a state for each count, in the bytes and in every row."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constraints_decodes import best_filling_of
from harness import full
from jsonschema import Draft202012Validator

from dllm.constraints.languages.schema import strings
from dllm.parts import (
    MASK,
    ByteAutomaton,
    JsonSchema,
    RowSets,
    Store,
    TokenLanguage,
    UserError,
    Vocabulary,
    automaton_of,
    minimal_table,
    schema_language,
    to_automaton,
    token_automaton,
)

PATTERNS = ["^[a-c]*$", "^(ab)*$", "b", "^a", "é|\\n", "^[^b]*b$", '"', "^.{2}"]


def text(draw: random.Random) -> dict[str, Any]:
    """A counted string."""
    high = draw.randint(2, 7)
    found: dict[str, Any] = {"type": "string", "maxLength": high, "minLength": draw.randint(0, high)}
    if draw.random() < 0.5:
        found["pattern"] = draw.choice(PATTERNS)
    return {**found, "not": {"enum": ["a", "ab"]}} if draw.random() < 0.2 else found


def listed(draw: random.Random) -> dict[str, Any]:
    """A counted list, of what may be counted itself."""
    high = draw.randint(2, 5)
    item = draw.choice(
        [
            {"type": "integer"},
            {"type": "string"},
            {"type": "array", "items": {"const": 1}},
            text(draw),
            {"enum": ["a", 1, None]},
            {"type": "string", "maxLength": 1},
        ]
    )
    return {"type": "array", "items": item, "maxItems": high, "minItems": draw.randint(0, high)}


def drawn_schema(seed: int) -> Any:
    draw = random.Random(seed)
    value = draw.choice([text, listed])(draw)
    match draw.randrange(5):
        case 0:
            return {"type": "object", "properties": {"a": value, "b": text(draw)}, "required": ["a"]}
        case 1:
            return {"anyOf": [value, draw.choice([text, listed])(draw), {"type": "null"}]}
        case 2:
            return {"type": "array", "prefixItems": [value, text(draw)], "items": {"type": "null"}, "maxItems": 3}
        case 3:
            return {"type": "object", "properties": {"v": value, "next": {"$ref": "#"}}, "required": ["v"]}
    return value


def both(seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ByteAutomaton, ByteAutomaton] | None:
    """A schema with its automaton that counts, and the one that has a state for each count; None: it is empty."""
    schema, options = drawn_schema(seed), {"depth": 1, "whitespace": random.Random(seed).choice(["any", "one", "none"])}
    monkeypatch.setattr(strings, "COUNTER_LENGTH", 1 << 30)
    plain = to_automaton(schema_language(schema, **options))
    monkeypatch.setattr(strings, "COUNTER_LENGTH", 2)
    if not len(plain.moves):
        with pytest.raises(UserError, match="no text at all"):
            automaton_of(JsonSchema(schema, **options))
        return None
    return schema, automaton_of(JsonSchema(schema, **options)), plain


def spread(automaton: ByteAutomaton) -> ByteAutomaton:
    """The minimal automaton with a state for each count, by trying every byte."""
    told = automaton.counters
    if told is None:
        return automaton
    places, rows, at = {(0, 0): 0}, list[list[int]](), 0
    waiting = [(0, 0)]
    while at < len(waiting):
        state, count = waiting[at]
        row = []
        for byte in range(256):
            new = automaton._after(state, count, byte)
            if new[0] >= 0 and new not in places:
                places[new] = len(places)
                waiting.append(new)
            row.append(places[new] if new[0] >= 0 else -1)
        rows.append(row)
        at += 1
    accepting = np.array([automaton.accepting[state] for state, _ in waiting])
    return ByteAutomaton(*minimal_table(np.array(rows, np.int32), accepting))


def test_an_automaton_that_counts_has_the_words_of_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minimal automata of equal languages are equal, state by state."""
    counted = 0
    for seed in range(600 if full() else 40):
        found = both(seed, monkeypatch)
        if found is None:
            continue
        schema, counting, plain = found
        counted += counting.counters is not None
        flat = spread(counting)
        assert np.array_equal(flat.moves, plain.moves) and np.array_equal(flat.accepting, plain.accepting), schema
    assert counted > (300 if full() else 20)


PIECES = ["a", "b", "ab", "abc", "aaaa", '"', '","', '":"', '{"a":"', '"}', '"b":"', ",", "[", "]", "[1,1", "],[",
          "1,1", "\\", "n", "\\n", "u00", "e9", "é", "1", "null", " ", 'a"', '["', '"a","a"', '{"v":', '{"v":"',
          '"next":', "}", 'b","a']  # fmt: skip
BYTES = [piece.encode() for piece in PIECES] + [b"\xc3", b"\xa9", b"a\xc3", b"\xa9b", b"\xf0\x9f", b"\x98\x80"]
TABLE, END = Vocabulary((*BYTES, None, None)), len(BYTES)


@pytest.mark.parametrize("seed", range(400 if full() else 24))
def test_rows_fit_the_same_tokens(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets, fillings and shortest texts, in rows that grow from masks to texts, with and without ends."""
    found, draw = both(seed, monkeypatch), random.Random(seed)
    if found is None:
        return
    ends = [END] if draw.random() < 0.7 else []
    one, other = (TokenLanguage(token_automaton(each, TABLE), ends) for each in found[1:])
    assert one.min_tokens == other.min_tokens
    begun = draw.choice([b"", b"", b'"a', b'{"a":"', b"[1,"])
    length = min(one.min_tokens or 1, 30) + draw.randint(0, 4)
    rows = [RowSets(language, [MASK] * length, 0, begun) for language in (one, other)]
    while rows[0].feasible() and rows[1].feasible():
        masks = [at for at, cell in enumerate(rows[1].cells) if cell == MASK]
        mine, plain = ([each.bits[row.language.classes] for each in row.allowed(masks)] for row in rows)
        assert np.array_equal(mine, plain), found[0]
        if not masks:
            return
        scores = [[draw.random() for _ in range(len(TABLE.texts))] for _ in masks]
        assert best_filling_of(rows[0], masks, scores) == best_filling_of(rows[1], masks, scores)
        tried = [(at, draw.randrange(END)) for at in draw.sample(masks, min(3, len(masks)))]
        assert rows[0].admit(*zip(*tried, strict=True)) == rows[1].admit(*zip(*tried, strict=True))
        at = draw.randrange(len(masks))
        number = draw.choice(np.flatnonzero(plain[at]).tolist())
        for row in rows:
            row.write([masks[at]], [number])
    assert rows[0].feasible() == rows[1].feasible()


def test_a_file_keeps_what_counts(tmp_path: Path) -> None:
    asked = JsonSchema({"type": "string", "maxLength": 300})
    first = Store(tmp_path).get("a", TABLE, lambda: automaton_of(asked))
    again = Store(tmp_path).get("a", TABLE, lambda: pytest.fail("it is in a file"))
    one, other = TokenLanguage(first, [END]), TokenLanguage(again, [END])
    rows = [RowSets(language, [MASK] * 9) for language in (one, other)]
    assert all(np.array_equal(a.bits, b.bits) for a, b in zip(*(row.allowed(range(9)) for row in rows), strict=True))
    assert again.places == first.places == 1 + 14 * 301 + 1 and again.automaton.accepts(b'"' + b"a" * 300 + b'"')


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


LONG: list[tuple[Any, Any]] = [
    (record(title={"type": "string", "maxLength": 200}, body={"type": "string", "maxLength": 4000}), "object"),
    ({"type": "string", "minLength": 1, "maxLength": 2083, "format": "uri"}, "string"),
    ({"type": "string", "minLength": 2000, "maxLength": 50_000}, "string"),
    ({"type": "string", "pattern": "^[a-z\\n]+$", "minLength": 5, "maxLength": 4000}, "string"),
    ({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 5000}, "array"),
    (record(**{name: {"type": "string", "maxLength": 500} for name in "abc"}), "object"),
    ({"type": "array", "maxItems": 5, "items": record(a={"type": "string", "maxLength": 1000})}, "array"),
]


def instances(kind: str) -> list[Any]:
    sizes = [0, 1, 4, 5, 199, 200, 201, 500, 501, 1999, 2000, 2083, 2084, 4000, 4001, 5000, 5001, 50_000, 50_001]
    if kind == "string":
        return ["a" * size for size in sizes] + ["\n" * size for size in sizes] + ["é" * 2083, "é" * 2084]
    if kind == "array":
        lists = [[sign] * size for size in sizes[:-2] for sign in ("x", 1)]
        return lists + [[{"a": "é" * size}] for size in (1000, 1001)]
    return [{"title": "x" * a, "body": "é" * b} for a in (0, 200, 201) for b in (0, 4000, 4001)] + [
        {"a": "x" * a, "b": "", "c": "\\" * c} for a in (500, 501) for c in (500, 501)
    ]


@pytest.mark.parametrize(("schema", "kind"), LONG)
def test_long_counts_compile_with_the_default_limit_and_are_exact(schema: Any, kind: str) -> None:
    found, judge = automaton_of(JsonSchema(schema, strict=False)), Draft202012Validator(schema)
    assert len(found.moves) < 1000
    for value in instances(kind):
        assert found.accepts(json.dumps(value, ensure_ascii=False).encode()) == judge.is_valid(value)
