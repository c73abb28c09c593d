"""A user's own copy of the benchmark, in its file format (contents made up here): read, and refused when damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dllm import UserError
from dllm.parts import SUITES, ParallelBench, Record, generated_records, templates

WORDING = 'Line:\\n\\n{context}\n\nAdd "{word}". Only the list.'  # with the two characters backslash and n, as stored
TASK = "waiting_line/insert_random"


def row(record: Record) -> dict[str, Any]:
    """A line of the benchmark's files."""
    shots = [{"input": shot.fields, "answer": shot.answer, "metadata": {}} for shot in record.shots]
    given = {**record.fields, **({"icl_examples": shots} if shots else {})}
    return {"input": given, "answer": record.answer, "output_format": None, "metadata": {"length": 3}}


def write(folder: Path, suite: str, name: str, prompt: str | None = WORDING, rows: Any = None) -> Path:
    """One task's file as the benchmark lays it out, with other questions than we would generate."""
    file = folder / "data" / "output" / "test" / f"{name}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    if rows is None:
        rows = [row(record) for record in generated_records(suite, SUITES[suite][name], 7)]
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    if prompt is not None:
        config = file.parent / "task_config.yaml"
        known: dict[str, Any] = yaml.safe_load(config.read_text()) if config.exists() else {}
        config.write_text(yaml.safe_dump({**known, name: {"prompt": prompt, "metric": "list_random_insert_score"}}))
    return file


@pytest.mark.parametrize("suite", ["r1", "r2"])
def test_questions_and_wording_come_from_the_copy(suite: str, tmp_path: Path) -> None:
    write(tmp_path, suite, TASK)
    task, made = ParallelBench(suite, [TASK], path=str(tmp_path)), ParallelBench(suite, [TASK])
    assert len(task.items()) == 100 and task.missing() == {}
    records = generated_records(suite, SUITES[suite][TASK], 7)
    for item, record in zip(task.items(), records, strict=True):
        chat: Any = item.prompt
        assert chat[1]["content"] == record.shots[0].solution
        assert chat[-1]["content"].startswith(f"Line:\n\n{record.fields['context']}\n\nAdd")
        assert task.score(item, record.solution) == {"score": 1.0, "score_strict": 1.0}
        assert task.score(item, record.fields["context"])["score"] == 0
    stamp, other = task.stamp(), made.stamp()
    assert stamp["source"] == "copy" and stamp["template"] != other["template"] and stamp["data"] != other["data"]


def test_without_its_configuration_our_wording_is_used(tmp_path: Path) -> None:
    write(tmp_path, "r1", TASK, prompt=None)
    item = ParallelBench(tasks=[TASK], path=str(tmp_path)).items()[0]
    chat: Any = item.prompt
    assert chat[0]["content"].startswith(templates("r1")[TASK][:50])


def test_texts_that_cannot_be_generated_are_asked_from_a_copy(tmp_path: Path) -> None:
    rows = [{"input": {"text": f"Hi {n}"}, "answer": {"text": f"Hi {n}", "summary": "Hello."}} for n in range(100)]
    name = "paraphrase_summarize/samsum"
    write(tmp_path, "r1", name, "Sum up: {text}", rows)
    task = ParallelBench(path=str(tmp_path))
    assert {item.task for item in task.items()} == {name}
    missing = task.missing()
    assert "task.grammar=URL" in missing["grammar_score"] and "does not hold it" in missing["waiting_line/copy"]
    assert task.score(task.items()[0], "Hello.")["score"] is None


def test_old_and_training_files_are_passed_over_and_two_copies_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "r1", TASK)
    for part in ("train", "_old"):
        other = tmp_path / "data" / part / f"{TASK}.jsonl"
        other.parent.mkdir(parents=True)
        other.write_text("damaged")
    assert len(ParallelBench(tasks=[TASK], path=str(tmp_path)).items()) == 100
    second = tmp_path / "again" / f"{TASK}.jsonl"
    second.parent.mkdir(parents=True)
    second.write_text(file.read_text())
    refused(tmp_path, "holds waiting_line/insert_random.jsonl several times")


def refused(folder: Path, words: str, **settings: Any) -> None:
    with pytest.raises(UserError) as caught:
        ParallelBench(**{"tasks": [TASK], "path": str(folder), **settings})
    assert words in str(caught.value)


def test_a_file_that_ends_in_the_middle_of_a_line_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "r1", TASK)
    file.write_bytes(file.read_bytes()[:-40])
    refused(tmp_path, "its last line is cut off. Fetch it again")


def test_a_file_that_ends_between_lines_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "r1", TASK)
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:57]))
    refused(tmp_path, "holds 57 questions of 100")
    assert len(ParallelBench(tasks=[TASK], path=str(tmp_path), count=57).items()) == 57


def test_damage_in_the_middle_names_the_line(tmp_path: Path) -> None:
    file = write(tmp_path, "r1", TASK)
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:4], "[" * 100_000, *lines[5:]]))
    refused(tmp_path, "line 5 is not JSON")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00binary", b"\x1f\x8b\x08\x00zipped \x9c"])
def test_a_file_that_is_no_text_is_refused(content: bytes, tmp_path: Path) -> None:
    write(tmp_path, "r1", TASK).write_bytes(content)
    refused(tmp_path, "cannot be read")


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "r1", TASK)
    file.unlink()
    file.mkdir()
    refused(tmp_path, "cannot be read")


BROKEN: list[tuple[Any, str]] = [
    ([], "no mapping 'input'"),
    (3, "no mapping 'input'"),
    ({"input": "text"}, "no mapping 'input'"),
    ({"input": {"context": "[]"}}, "no 'answer' with 'input' and 'word'"),
    ({"input": {"context": "[]"}, "answer": '["A"]'}, "no 'answer' with 'input' and 'word'"),
    ({"input": {"context": "[]"}, "answer": {"input": ["A"], "word": None}}, "no 'answer' with 'input' and 'word'"),
    ({"input": {"context": "[]", "icl_examples": [1]}, "answer": {"input": ["A"], "word": "B"}}, "no mapping 'input'"),
]


@pytest.mark.parametrize(("broken", "words"), BROKEN)
def test_rows_that_lack_something_are_refused(broken: Any, words: str, tmp_path: Path) -> None:
    rows: list[Any] = [row(record) for record in generated_records("r1", SUITES["r1"][TASK], 7)]
    rows[11] = broken
    write(tmp_path, "r1", TASK, rows=rows)
    refused(tmp_path, words)
    refused(tmp_path, "insert_random.jsonl:12")


def test_a_template_that_wants_other_fields_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "r1", TASK, "Who is {nobody}?")
    refused(tmp_path, "wants 'nobody'")


@pytest.mark.parametrize("text", ["[1, 2]", "a: b: c", "\x00"])
def test_a_damaged_configuration_is_refused(text: str, tmp_path: Path) -> None:
    file = write(tmp_path, "r1", TASK)
    (file.parent / "task_config.yaml").write_text(text)
    refused(tmp_path, "task_config.yaml cannot be read")


@pytest.mark.parametrize(("suite", "other"), [("r1", "r2"), ("r2", "r1")])
def test_suites_are_never_mixed(suite: str, other: str, tmp_path: Path) -> None:
    write(tmp_path, suite, TASK)
    refused(tmp_path, f"is a file of suite {suite}: set task.suite={suite}", suite=other)


def test_an_empty_folder_and_a_place_that_is_none_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, "no question that can be asked")
    refused(tmp_path / "absent", "is not a folder here")


class Hub:
    """The functions of the library datasets that are used, with rows as the hub's."""

    def __init__(self, rows: Mapping[str, list[dict[str, Any]]]) -> None:
        self.rows = rows

    def get_dataset_config_names(self, repository: str) -> list[str]:
        return list(self.rows)

    def load_dataset(self, repository: str, name: str, split: str) -> list[dict[str, Any]]:
        assert split == "test"
        return self.rows[name]


def test_rows_of_the_hub_carry_json_and_their_wording(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    rows: list[dict[str, Any]] = []
    for record in generated_records("r2", SUITES["r2"][TASK], 7):
        line = row(record)
        rows.append({**{key: json.dumps(line[key]) for key in ("input", "answer", "metadata")}, "prompt": WORDING})
    hub = Hub({"waiting_line-insert_random": rows})
    monkeypatch.setattr(datasets, "get_dataset_config_names", hub.get_dataset_config_names)
    monkeypatch.setattr(datasets, "load_dataset", hub.load_dataset)
    task = ParallelBench("r2", ["insert_random", "copy"], count=10, path="owner/benchmark")
    assert len(task.items()) == 10 and "waiting_line/copy" in task.missing()
    answer: Any = task.items()[3].truth["answer"]
    assert task.score(task.items()[3], answer["example"])["score"] == 1
    rows[5]["answer"] = '{"input": ["A"'
    with pytest.raises(UserError, match="damaged JSON"):
        ParallelBench("r2", ["insert_random"], path="owner/benchmark")


def test_without_a_network_the_hub_is_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def offline(*arguments: Any) -> None:
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(datasets, "get_dataset_config_names", offline)
    with pytest.raises(UserError, match="no route to the hub.*give the folder of a copy"):
        ParallelBench("r2", ["copy"], path="owner/benchmark")
