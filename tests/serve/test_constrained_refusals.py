"""Forms of an answer that are refused, each with a sentence: by their fields, by their language, by the canvas."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dllm.parts import Choice, Defaults, Grammar, JsonSchema, Model, Regex, parse_request, request_of, trace_file
from tests.serve.conftest import Place, error_of
from tests.serve.test_trace_file import EMPTY

pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install -e '.[constraints]'")
pytest.importorskip("lark", reason="lark is not installed: pip install -e '.[constraints]'")


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


def test_a_form_is_the_constraint_that_the_command_line_knows(mini: Defaults) -> None:
    person = {"type": "object", "properties": {"b": {}, "a": {}}}
    json_ = {"response_format": {"type": "json_object"}}
    for fields, constraint in (
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None}, None),
        (json_, JsonSchema({"type": "object"}, additional=True, strict=False)),
        (schema(person), JsonSchema(person, strict=False)),
        (schema(person, strict=None), JsonSchema(person, strict=False)),
        (schema(person, strict=True, description="two"), JsonSchema(person)),
        (
            option(schema(True), additional=True, whitespace="one", depth=2, confidence="admissible"),
            JsonSchema(True, strict=False, additional=True, whitespace="one", depth=2, confidence="admissible"),
        ),
        (regex("a+"), Regex("a+")),
        (choice(["a", "b"]), Choice(["a", "b"])),
        (option(grammar("start: A"), words=True, depth=None), Grammar("start: A", words=True)),
    ):
        for job in parse_request({"prompt": "a", "n": 2, **fields}, False, mini).jobs:
            assert job.request.constraint == constraint, fields
            file = json.loads(json.dumps(trace_file("a", job, EMPTY, {"model": {}})))
            assert request_of(file).constraint == constraint, "task=replay decodes under the same"


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
    assert reply.status_code == 400 and "needs a byte-level BPE tokenizer" in error_of(reply)["message"]
    assert words.scheduler.count == 0
    words.close()
