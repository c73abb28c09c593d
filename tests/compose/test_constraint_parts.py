"""The group ``constraint`` of the configuration: its files say what its classes take, and its options are data."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from dllm import UserError, part
from dllm.parts import (
    Choice,
    FunctionCall,
    Grammar,
    Json,
    JsonSchema,
    Regex,
    TaskConstraint,
    build_part,
    choice_of,
    choices,
    composed,
    options_of_choices,
    part_config,
    part_of,
)

KINDS = {
    "choice": Choice,
    "regex": Regex,
    "json": Json,
    "json_schema": JsonSchema,
    "call": FunctionCall,
    "grammar": Grammar,
    "from_task": TaskConstraint,
}
NEEDED: dict[str, dict[str, Any]] = {
    "choice": {"options": ["a"]},
    "regex": {"pattern": "a"},
    "json_schema": {"schema": {}},
    "grammar": {"grammar": "start: /a/"},
    "call": {"functions": [{"name": "a"}]},
}


def test_every_kind_has_its_file_with_its_options_and_their_defaults() -> None:
    assert choices("constraint") == sorted([*KINDS, "none"])
    for name, kind in KINDS.items():
        options = dict(options_of_choices("constraint")[name])
        assert options.pop("_target_") == f"{kind.__module__}.{kind.__name__}" and kind.kind == name
        assert options.keys() == {entry.name for entry in fields(kind) if entry.init}
        built = part("constraint", name, **NEEDED.get(name, {}))
        assert type(built) is kind and choice_of("constraint", part_config("constraint", name, {})) == name
        kept = {key: value for key, value in options.items() if key not in NEEDED.get(name, {})}
        assert kept == {key: getattr(kind(**NEEDED.get(name, {})), key) for key in kept}


def test_none_builds_nothing_and_is_the_default() -> None:
    assert part("constraint", "none") is None and part_of("constraint", "none") is None
    assert composed([]).constraint == {} and choice_of("constraint", {}) == "none"
    with pytest.raises(UserError, match="constraint=none has no option 'limit'"):
        part("constraint", "none", limit=3)


@pytest.mark.parametrize("name", NEEDED)
def test_what_a_kind_needs_is_named(name: str) -> None:
    (option,) = NEEDED[name]
    for given in ({}, {option: None}):
        with pytest.raises(UserError, match=rf"constraint needs constraint\.{option}"):
            part("constraint", name, **given)


def test_a_schema_is_data_and_never_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
    (tmp_path / "canary_of_schemas.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DLLM_SECRET", "swordfish")
    schema = {
        "_target_": "canary_of_schemas.Mine",
        "title": "${oc.env:DLLM_SECRET}",
        "const": {"_target_": "canary_of_schemas.make", "name": "regex"},
    }
    ways = (
        part("constraint", "json_schema", schema=schema),
        part_of("constraint", {"name": "json_schema", "schema": schema}),
        build_part("constraint", part_config("constraint", "json_schema", {"schema": schema})),
    )
    for found in ways:
        assert found.schema == schema and found == JsonSchema(schema)
    assert not (tmp_path / "ran").exists() and "canary_of_schemas" not in sys.modules


@pytest.mark.parametrize("given", [
    5, None, ["regex"], {"pattern": "a"}, {"name": 5}, {"name": "../cache/none"}, {"name": "regex _target_=os.system"},
    {"name": "regex", "pattern": {"_target_": "os.mkdir"}}, {"name": "regex", "_target_": "os.mkdir"},
    {"name": "choice", "options": {"a": 1}}, {"name": "json", "depth": {"name": "regex"}},
])  # fmt: skip
def test_what_is_no_choice_is_one_sentence(given: Any) -> None:
    with pytest.raises(UserError) as refused:
        part_of("constraint", given)
    assert str(refused.value).startswith("constraint") and "\n" not in str(refused.value)


def test_a_schema_may_be_text() -> None:
    assert JsonSchema('{"type": "object"}') == JsonSchema({"type": "object"}) != JsonSchema(True) == JsonSchema("true")
    with pytest.raises(UserError, match="is not JSON: Expecting value"):
        JsonSchema("schema.json")
