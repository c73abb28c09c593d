"""Forms of an answer that are refused, each with a sentence: by their fields, by their language, by the canvas."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dllm.app.commands.replay import request_of
from dllm.constraints import Choice, Grammar, JsonSchema, Regex
from dllm.models.bundle import Model
from dllm.serve.request_parts import Defaults
from dllm.serve.trace_file import trace_file
from dllm.serve.wire import parse_request
from tests.serve.bodies import refusal
from tests.serve.conftest import Place, error_of
from tests.serve.test_trace_file import EMPTY

pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install 'dllm[constraints]'")
pytest.importorskip("lark", reason="lark is not installed: pip install 'dllm[constraints]'")


def schema(value: Any, **more: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value, **more}}}


def regex(pattern: Any) -> dict[str, Any]:
    return {"response_format": {"type": "regex", "pattern": pattern}}


def choice(options: Any) -> dict[str, Any]:
    return {"response_format": {"type": "choice", "options": options}}


def option(body: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {**body, "diffusion": {"constraint": options}}


def grammar(text: Any) -> dict[str, Any]:
    return {"response_format": {"type": "grammar", "grammar": text}}


# What is known once the language is, and the sentence that the command line says, in the names of requests.
COMPILED: list[tuple[dict[str, Any], str]] = [
    ({**regex("a{20}"), "max_tokens": 8}, "response_format of type regex: its shortest text takes 20 tokens and the "
     "answer has 8. Raise max_tokens to 20 or more."),
    ({**regex("a{5}"), "diffusion": {"canvas": ["b", 4]}}, "response_format of type regex: the given tokens leave no "
     "way to complete a text in 4 masks. Give more masks, or change the given text."),
    (regex("[^\\s\\S]"), "the constraint allows no text at all."),
    (regex("%"), "response_format of type regex allows no text that this tokenizer can write."),
    (regex("a("), "response_format.pattern='a(' is no regular expression: missing ), unterminated subpattern "
     "at position 1."),
    (regex("a(?=b)"), "looks ahead or behind, which is no regular language here."),
    (regex("(a)\\1"), "refers back to a group"),
    (regex("a(?m)b"), "response_format.pattern='a(?m)b'"),
    (regex("a^b"), "has an anchor inside. Only ^ and $ are known, at the two ends."),
    (schema({"properties": {"a": {"not": {"minLength": 3}}}}), "response_format.json_schema.schema at #/properties"),
    (schema({"type": "string", "maxlength": 3}, strict=True), "the keyword 'maxlength' is unknown. Did you "
     "mean 'maxLength'?"),
    (schema({"exclusiveMinimum": True}), "this is no JSON schema (Draft 2020-12): True is not of type"),
    (schema({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "oneOf: cases 0 and 1 may share a"),
    (schema({"$ref": "http://elsewhere/x.json"}), "response_format.json_schema.schema at #"),
    (schema(False), "the constraint allows no text at all."),
    (grammar("start: b"), "response_format.grammar: "),
    (grammar("start: A\nA: /a(?=b)/"), "response_format.grammar: terminal A='a(?=b)' looks ahead"),
    (grammar("start: a\na: b\nb: a"), "begins with itself by way of others (left recursion)."),
    (grammar("start: x\n%import .secret.x"), "response_format.grammar: %import .secret would read a file."),
    (grammar("start: x\n%import secret.x"), "response_format.grammar: %import secret would read a file."),
    (choice([]), "the constraint allows no text at all."),
    (choice(["%"]), "response_format of type choice allows no text that"),
]  # fmt: skip


# What its fields tell already: the field at fault, and the sentence.
FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": "text"}, "response_format", "must be an object whose type is one of text, json_object,"),
    ({"response_format": {"type": "jsn_object"}}, "response_format", "Did you mean 'json_object'?"),
    ({"response_format": {"type": ["regex"]}}, "response_format", "must be an object whose type"),
    ({"response_format": {"type": "text", "pattern": "a"}}, "response_format.pattern", "it has type."),
    ({"response_format": {"type": "regex", "patern": "a"}}, "response_format.patern", "Did you mean 'pattern'?"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "must be an object with any of"),
    (regex(None), "response_format", "response_format.pattern=None must be a text."),
    (regex("a" * 4097), "response_format", "its pattern has 4097 bytes, more than the limit of 4096. Shorten it."),
    (grammar("é" * 8193), "response_format", "its grammar has 16386 bytes, more than the limit of 16384."),
    (schema({"const": "a" * 65536}), "response_format", "bytes, more than the limit of 65536."),
    (choice(["a" * 40000] * 2), "response_format", "its options has 80000 bytes, more than the limit of 65536."),
    (choice("yes"), "response_format", "response_format.options='yes' must be a list of texts"),
    (choice([1]), "response_format", "response_format.options=[1] must be a list of texts"),
    (schema([1]), "response_format", "response_format.json_schema.schema=[1] must be a schema: an object, true"),
    (schema({}, strict=1), "response_format", "response_format.json_schema.strict=1 must be true or false"),
    (schema({}, shema={}), "response_format.json_schema.shema", "has no field 'shema'"),
    (option(regex("a"), words=True), "diffusion.constraint.words", "has no meaning for response_format of type regex, "
     "which takes confidence."),
    (option({}, depth=3), "diffusion.constraint.depth", "takes none: set response_format, too."),
    (option({"response_format": {"type": "json_object"}}, additional=False), "diffusion.constraint.additional",
     "has no meaning for response_format of type json_object"),
    (option(schema({}), depth=33), "diffusion.constraint.depth", "is more than 32, the most that is served."),
    (option(schema({}), depth=-1), "diffusion.constraint.depth", "constraint.depth=-1 must be a whole number"),
    (option(schema({}), depth="4"), "diffusion.constraint.depth", "constraint.depth='4' must be a whole number"),
    (option(schema({}), whitespace="two"), "diffusion.constraint.whitespace", "diffusion.constraint.whitespace='two'"),
    (option(regex("a"), confidence=1), "diffusion.constraint.confidence", "constraint.confidence='1' must be one of"),
    (option(regex("a"), confidense="model"), "diffusion.constraint.confidense", "Did you mean 'confidence'?"),
    ({**regex("a"), "diffusion": {"constraint": "none"}}, "diffusion.constraint", "must be an object with any of"),
]  # fmt: skip


def test_what_the_fields_tell_is_refused_before_anything_is_compiled(mini: Defaults) -> None:
    for fields, param, sentence in FIELDS:
        refused = refusal(mini, **fields)
        told = refused.message
        assert sentence in told and (refused.status, refused.param) == (400, param), (fields, told)


def test_a_form_is_the_constraint_that_the_command_line_knows(mini: Defaults) -> None:
    person = {"type": "object", "properties": {"b": {}, "a": {}}}
    json_ = {"response_format": {"type": "json_object"}}
    for fields, constraint in (
        ({}, None), ({"response_format": {"type": "text"}}, None), ({"response_format": None}, None),
        (json_, JsonSchema({"type": "object"}, additional=True, strict=False)),
        (schema(person), JsonSchema(person, strict=False)),
        (schema(person, strict=None), JsonSchema(person, strict=False)),
        (schema(person, strict=True, description="two"), JsonSchema(person)),
        (option(schema(True), additional=True, whitespace="one", depth=2, confidence="admissible"),
         JsonSchema(True, strict=False, additional=True, whitespace="one", depth=2, confidence="admissible")),
        (regex("a+"), Regex("a+")), (choice(["a", "b"]), Choice(["a", "b"])),
        (option(grammar("start: A"), words=True, depth=None), Grammar("start: A", words=True)),
    ):  # fmt: skip
        for job in parse_request({"prompt": "a", "n": 2, **fields}, False, mini).jobs:
            assert job.request.constraint == constraint, fields
            file = json.loads(json.dumps(trace_file("a", job, EMPTY, {"model": {}})))
            assert request_of(file).constraint == constraint, "task=replay decodes under the same"


def test_what_no_language_allows_is_refused_with_the_command_lines_sentence(writer: Place) -> None:
    before = writer.scheduler.count
    for fields, sentence in COMPILED:
        reply = writer.ask("/v1/completions", **{"prompt": "ab", **fields})
        error, where = error_of(reply), "response_format"
        assert reply.status_code == 400 and sentence in error["message"] and error["param"] == where, (fields, error)
    assert writer.scheduler.count == before, "nothing was decoded"


def test_a_grammar_reads_no_file(writer: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lark itself would find them beside the program, and in the folder in which it runs."""
    (tmp_path / "secret.lark").write_text('x: "abc"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "run.py"), raising=False)
    for name in (".secret", "secret"):
        reply = writer.ask(**grammar(f"start: x\n%import {name}.x"))
        assert reply.status_code == 400 and "would read a file" in error_of(reply)["message"]
    for text in ("start: X\n%import common.INT -> X", "start: x\n%import common (INT, WS)\nx: INT\n%ignore WS"):
        assert writer.ask(**grammar(text)).status_code == 200, text


def test_a_tokenizer_that_is_not_byte_level_takes_no_constraint(served: Model) -> None:
    words = Place(served)
    reply = words.ask(**regex("a"))
    assert reply.status_code == 400 and "a constraint needs a byte-level BPE tokenizer" in error_of(reply)["message"]
    assert words.scheduler.count == 0
    words.close()
