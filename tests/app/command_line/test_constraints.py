"""``constraint=...`` on the command line and in files of prompts: what is decoded, kept, refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.app.command_line.conftest import Run

MINI = Path("mini-llada")
MONTH = "[0-9]{4}-[0-9]{2}"
LIST = {"type": "array", "items": {"enum": ["Kai", "Ada"]}, "minItems": 2, "maxItems": 2}


def schema_file(folder: Path, schema: Any, name: str = "schema.json") -> str:
    (folder / name).write_text(json.dumps(schema))
    return f"constraint.schema={name}"


def test_a_pattern_is_taken_as_typed_and_kept(run: Run) -> None:
    month = ["name=month", "constraint=regex", f"constraint.pattern={MONTH}", "trace=true"]
    first = run("prompt=When?", *month, model=MINI)
    (row,) = first.rows()
    assert first.code == 0 and re.fullmatch(MONTH, row["text"])
    assert row["constraint"]["kind"] == "regex" and row["constraint"]["fewest"] <= 7
    stored = yaml.safe_load((first.run / "config.yaml").read_text())["constraint"]
    assert stored["pattern"] == MONTH and stored["_target_"] == "dllm.constraints.kinds.Regex"
    assert run("resume=runs/month").code == 0 and run("prompt=When?", *month, model=MINI).code == 0
    other = run("prompt=When?", "name=month", "constraint=regex", "constraint.pattern=[0-9]{5}", model=MINI)
    assert other.code == 2 and f"was run with constraint.pattern={MONTH}, not [0-9]{{5}}" in other.err
    free = run("prompt=When?", "name=month", model=MINI)
    assert free.code == 2 and "was run with constraint=regex, not none" in free.err
    again = run("task=replay", "trace=runs/month/traces/1-0.json")
    assert again.code == 0 and "turns equal" in again.out, again.err


def test_a_run_keeps_what_its_files_held(run: Run, tmp_path: Path) -> None:
    arguments = ["prompt=List?", "name=list", "constraint=json_schema", schema_file(tmp_path, LIST)]
    outcome = run(*arguments, model=MINI)
    assert set(json.loads(outcome.rows()[0]["text"])) <= {"Kai", "Ada"}
    (tmp_path / "schema.json").write_text(json.dumps(LIST, indent=4))
    assert run(*arguments, model=MINI).code == 0, "other white space in the file is no other schema"
    schema_file(tmp_path, {"$comment": "", **LIST, "items": {"enum": ["Kai"]}})
    assert "was run with constraint.schema=" in run(*arguments, model=MINI).err


def test_members_in_another_order_are_another_schema(run: Run, tmp_path: Path) -> None:
    kinds = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    schema = {"type": "object", "properties": kinds, "required": ["a", "b"]}
    arguments = ["prompt=x", "name=order", "constraint=json_schema", "constraint.whitespace=none"]
    first = run(*arguments, schema_file(tmp_path, schema), model=MINI)
    assert list(json.loads(first.rows()[0]["text"])) == ["a", "b"]
    turned = {**schema, "properties": dict(reversed(kinds.items()))}
    assert "was run with constraint.schema=" in run(*arguments, schema_file(tmp_path, turned), model=MINI).err


def test_a_grammar_is_its_rules_or_a_file(run: Run, tmp_path: Path) -> None:
    rules = 'start: "(" start ")" | "x"'
    (tmp_path / "round.lark").write_text(rules)
    for name, given in (("typed", rules), ("file", "round.lark")):
        outcome = run("prompt=x", f"name={name}", "constraint=grammar", f"constraint.grammar={given}", model=MINI)
        assert outcome.code == 0, outcome.err
        (row,) = [json.loads(line) for line in (Path("runs") / name / "results.jsonl").read_text().splitlines()]
        assert re.fullmatch(r"(\(*)x(\)*)", row["text"]) and row["text"].count("(") == row["text"].count(")")
        stored = yaml.safe_load((Path("runs") / name / "config.yaml").read_text())
        assert stored["constraint"]["grammar"] == rules


LINES: list[tuple[Any, str | None]] = [  # a line's content; why it is skipped
    ({"prompt": "x", "constraint": {"name": "choice", "options": ["yes", "no"]}}, None),
    ({"prompt": "x", "constraint": {"name": "regex", "pattern": "a("}}, "is no regular expression"),
    ({"prompt": "x", "constraint": {"name": "json_schema", "schema": LIST}}, None),
    ({"prompt": "x", "constraint": {"name": "regx", "pattern": "a"}}, "Did you mean 'regex'?"),
    ({"prompt": "x", "constraint": {"name": "regex", "patern": "a"}}, "Did you mean 'pattern'?"),
    ({"prompt": "x", "constraint": 5}, '{"name": NAME, OPTION: VALUE}'),
    ({"prompt": "x", "constraint": {"name": "from_task"}}, "what each question of a task says"),
    ({"prompt": "x", "constraint": {"name": "json_schema", "schema": "schema.json"}}, "is not JSON"),
    (
        {"infill": ["It takes ", 6, " days."], "constraint": {"name": "regex", "pattern": "It takes [0-9]+ days[.]"}},
        None,
    ),
    (
        {"infill": ["It takes ", 2, " days."], "constraint": {"name": "regex", "pattern": "It takes [0-9]{9} days[.]"}},
        "no way to complete a text in 2 masks",
    ),
    ({"prompt": "x", "constraint": None}, None),
    ({"prompt": "x"}, None),
]


def test_each_line_of_a_file_may_bring_its_own(run: Run, tmp_path: Path) -> None:
    schema_file(tmp_path, LIST)
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line, _ in LINES))
    arguments = ["prompts=lines.jsonl", "batch_size=4", "name=lines", "constraint=regex", f"constraint.pattern={MONTH}"]
    outcome = run(*arguments, model=MINI)
    assert outcome.code == 0
    for number, (_, why) in enumerate(LINES, 1):
        skipped = re.findall(rf"line {number} is skipped: (.*)", outcome.err)
        assert bool(skipped) == bool(why) and (why is None or why in skipped[0]), (number, skipped)
    rows = {row["id"]: row for row in outcome.rows()}
    assert rows["1"]["text"] in ("yes", "no") and len(json.loads(rows["3"]["text"])) == 2
    assert re.fullmatch("It takes [0-9]+ days[.]", rows["9"]["text"])
    assert rows["11"]["constraint"] is None and re.fullmatch(MONTH, rows["12"]["text"])
    LINES_NOW = [{**line, "constraint": {"name": "choice", "options": ["maybe"]}} for line, _ in LINES[:1]]
    (tmp_path / "lines.jsonl").write_text(json.dumps(LINES_NOW[0]) + "\n")
    assert "or under another constraint" in run(*arguments, model=MINI).err


@pytest.mark.usefixtures("no_weights")
def test_a_tokenizer_that_is_not_byte_level_is_refused(run: Run) -> None:
    outcome = run("prompt=w1", "constraint=choice", "constraint.options=[w1]")
    assert outcome.code == 2 and "byte-level" in outcome.err and outcome.err.count("\n") == 1


@pytest.mark.usefixtures("no_weights")
def test_a_server_takes_no_constraint_for_all(run: Run) -> None:
    outcome = run("task=serve", "constraint=json")
    assert outcome.code == 2 and "each request asks for itself" in outcome.err
