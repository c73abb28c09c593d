"""Standard tasks in the runner: decoded or chosen, scored, and written as rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dllm import Decoder, load
from dllm.parts import METHODS, Estimator, Evaluation, Item, ResultRow, composed_settings, likeliest_choice, measurable

ROOT = Path(__file__).parents[3]


def rows_of(settings: dict[str, Any]) -> list[ResultRow]:
    evaluation = Evaluation.of(composed_settings({"gen_length": 32, **settings}))
    return [row for row, _ in evaluation.rows(evaluation.answers.batches)]


def written(file: Path, *rows: object) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_questions_of_ones_own_are_decoded_and_scored(tmp_path: Path) -> None:
    right = {"prompt": 'Sort the list:\n["Kai", "Emma", "Hugo"]', "answer": '["Emma", "Hugo", "Kai"]'}
    path = written(tmp_path / "q", right, right | {"answer": "another"})
    rows = rows_of({"task": "jsonl", "task.path": path, "batch_size": 2})
    assert [row["scores"] for row in rows] == [{"score": 1.0}, {"score": 0.0}]
    assert all(row["suite"] == "jsonl" and row["nfe"] >= 1 and row["task"] == "jsonl" for row in rows)


def test_choices_are_picked_by_likelihood(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="the extra [eval] is not installed")
    row = {"question": "Which?", "choices": ["a", "b", "c", "d"], "answer": 1, "subject": "anatomy"}
    path = written(tmp_path / "q", row, row)
    rows = rows_of({"task": "mmlu", "task.path": path, "task.shots": 0, "task.likelihood": "exact_ar", "chat": False})
    for found in rows:
        assert found["text"] in (" A", " B", " C", " D")
        assert found["scores"]["acc"] == float(found["text"] == " B")
        assert found["bits"] == [] and found["task"] == "mmlu_anatomy" and found["nfe"] >= 1
    assert rows[0]["text"] == rows[1]["text"]


@pytest.mark.parametrize("method", METHODS)
def test_the_likeliest_choice_is_the_right_one(method: str) -> None:
    """A model that sorts, asked to sort, with the list's permutations to choose from."""
    model = load("mini-llada")
    lists = ('["Emma", "Hugo", "Kai"]', '["Hugo", "Emma", "Kai"]', '["Kai", "Emma", "Hugo"]', '["Emma", "Kai", "Hugo"]')
    item = Item("1", "t", 'Sort the list:\n["Kai", "Emma", "Hugo"]', {}, 1, (), lists)
    found = likeliest_choice(model, Decoder(model).prompts, item, Estimator(method, samples=16, rows=8))
    assert found.text == lists[0] and found.nfe >= 2  # lists that begin alike share canvases and found.seconds > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["task=humaneval"], "allow_code=true"),
        (["task=gsm8k", "allow_code=true"], "allow_code=true is not a setting here"),
    ],
)
def test_mistakes_end_as_one_sentence(arguments: list[str], words: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "run.py"), *arguments, f"output={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not list(tmp_path.iterdir())


def test_the_page_lists_every_task() -> None:
    page = (ROOT / "docs" / "tasks.md").read_text()
    missing = [name for name in measurable() if name != "parallelbench" and f"| `{name}` |" not in page]
    assert not missing
