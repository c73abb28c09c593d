"""Evaluations under constraints: questions that say what an answer looks like, sweeps, engines."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from dllm.parts import Evaluation, Replica, Request, checked_settings, composed, part, part_of, resolved
from dllm.tasks import answer_formats
from tests.app.conftest import Run, rows_of, timeless

DIGITS = {"name": "regex", "pattern": "[0-9]{3}"}
ASKED: list[dict[str, Any]] = [
    {"id": "digits", "prompt": "A number?", "answer": "123", "constraint": DIGITS},
    {"id": "word", "prompt": "A word?", "answer": "x", "constraint": {"name": "choice", "options": ["yes", "no"]}},
    {"id": "free", "prompt": "Anything?", "answer": "x"},
]
TASK = ["task=jsonl", "task.path=asked.jsonl", "task.budget=8", "model.path=mini-llada", "batch_size=4"]


@pytest.fixture(autouse=True)
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ASKED))


def settings(*overrides: str) -> dict[str, Any]:
    return checked_settings(resolved(composed([*TASK, *overrides])))


def test_validity_is_scored_for_free_and_for_constrained_answers_at_equal_forwards(run: Run) -> None:
    schedule = ["sampler=static", "sampler.per_step=4", "blocks=whole", "eos=none"]
    outcome = run("-m", *TASK, *schedule, "constraint=none,from_task", "name=both", bare=True)
    assert outcome.code == 0 and "constraint=from_task" in outcome.out, outcome.err
    cells = {
        rows_of(file.parent)[0]["constraint"] is None: {row["id"]: row for row in rows_of(file.parent)}
        for file in Path("runs/both").glob("*/results.jsonl")
    }
    free, constrained = cells[True], cells[False]
    assert {name: row["nfe"] for name, row in free.items()} == {name: row["nfe"] for name, row in constrained.items()}
    assert [free[name]["scores"]["valid"] for name in ("digits", "word")] == [0.0, 0.0]
    assert [constrained[name]["scores"]["valid"] for name in ("digits", "word")] == [1.0, 1.0]
    assert re.fullmatch("[0-9]{3}", constrained["digits"]["text"]) and constrained["word"]["text"] in ("yes", "no")
    assert "valid" not in free["free"]["scores"] and constrained["free"]["text"] == free["free"]["text"]
    assert constrained["free"]["constraint"] is None


@pytest.mark.program
def test_a_sweep_takes_patterns_in_quotes_of_their_own(run: Run) -> None:
    some = [*TASK, "task.limit=1"]
    patterns = "constraint.pattern='[ab]{1,3}','[0-9]{2}'"
    assert run("-m", *some, "constraint=regex", patterns, "name=swept", bare=True).code == 0
    grid = "grids=[{constraint: regex, constraint.pattern: ['[ab]{1,3}', '[0-9]{2}']}]"
    assert run("-m", *some, grid, "name=swept", bare=True).code == 0, "the same cells"
    texts = [[row["text"] for row in rows_of(file.parent)] for file in Path("runs/swept").glob("*/results.jsonl")]
    kinds = {
        pattern
        for cell in texts
        for pattern in ("[ab]{1,3}", "[0-9]{2}")
        if all(re.fullmatch(pattern, text) for text in cell)
    }
    assert len(texts) == 2 and len(kinds) == 2


def test_workers_of_other_processes_decode_the_same() -> None:
    """What Ray hands to a replica is the configuration as JSON; requests are pickled."""
    config = settings("constraint=from_task")
    evaluation = Evaluation.of(config)
    here = [timeless(row) for row, _ in evaluation.rows(evaluation.answers.batches)]
    keys = [batch.keys for batch in evaluation.answers.batches]
    there = [timeless(row) for row, _, _ in Replica("nowhere").rows(config, keys)]
    clocks = ("compile_seconds", "seconds")
    for row in (*here, *there):
        row["constraint"] = {key: value for key, value in (row["constraint"] or {}).items() if key not in clocks}
    assert here == there and len(here) == 3
    requests = [sample.request for batch in evaluation.answers.batches for sample in batch.samples]
    assert pickle.loads(pickle.dumps(requests)) == requests


def test_options_of_the_choice_hold_for_every_question() -> None:
    evaluation = Evaluation.of(settings("constraint=from_task", "constraint.confidence=admissible"))
    found = [sample.request.constraint for batch in evaluation.answers.batches for sample in batch.samples]
    assert found == [
        part("constraint", "regex", pattern="[0-9]{3}", confidence="admissible"),
        part("constraint", "choice", options=["yes", "no"], confidence="admissible"),
        None,
    ]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["constraint=from_task", "gen_length=1"],
            "question digits: constraint=regex: its shortest text takes 2 tokens",
        ),
        (["constraint=from_task", "stop=[x]"], "stop=['x'] cannot go with a constraint"),
        (["constraint=regex", "constraint.pattern=[0-9]{99}", "gen_length=40"], "the answer has 40"),
    ],
)
def test_what_no_question_can_answer_is_refused(run: Run, overrides: list[str], words: str) -> None:
    outcome = run(*TASK, *overrides, bare=True)
    assert outcome.code == 2 and words in outcome.err and not Path("runs").exists(), outcome.err


def test_stop_strings_of_questions_have_no_meaning_under_a_constraint(run: Run) -> None:
    arguments = [*TASK, "task.stop=['1']", "constraint=from_task", "name=stops"]
    assert run(*arguments, bare=True).code == 0
    assert all(len(row["text"]) == 3 for row in rows_of(Path("runs/stops")) if row["id"] == "digits")


def test_a_constraint_of_a_question_that_cannot_be_read_names_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "asked.jsonl").write_text(json.dumps({**ASKED[0], "constraint": {"name": "regx"}}) + "\n")
    outcome = run(*TASK, bare=True)
    assert outcome.code == 2 and "question 1: " in outcome.err and "Did you mean 'regex'?" in outcome.err


def test_validity_that_nothing_judges_is_missing_and_never_0(run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(answer_formats, "find_spec", lambda name: None)
    lines = [ASKED[0], {**ASKED[1], "constraint": {"name": "json_schema", "schema": {"type": "integer"}}}]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcome = run(*TASK, "name=lacking", bare=True)
    assert outcome.code == 0 and outcome.err.count("the score valid needs jsonschema") == 1
    assert {row["id"]: row["scores"]["valid"] for row in rows_of(Path("runs/lacking"))} == {"digits": 0.0, "word": None}


@pytest.mark.parametrize(
    "asked",
    [
        {"name": "regex", "pattern": "a+", "confidence": "admissible"},
        {"name": "choice", "options": ["a", "b"]},
        {"name": "json_schema", "schema": {"type": "object", "properties": {"b": {}, "a": {}}}, "strict": False},
        {"name": "grammar", "grammar": 'start: "a"', "words": True},
        {"name": "json", "depth": 2, "limit": 7},
    ],
)
def test_a_constraint_and_its_description_are_one(asked: dict[str, Any]) -> None:
    found = part_of("constraint", asked)
    described = json.loads(json.dumps(found.to_json()))
    again = part_of("constraint", described)
    assert again == found and hash(again) == hash(found) and asked.items() <= described.items()
    assert Request([1], [True], constraint=found) == Request([1], [True], constraint=again)
