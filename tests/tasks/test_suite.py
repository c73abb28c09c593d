"""``task=parallelbench`` from its configuration: which tasks, what they ask, what is missing, what identifies them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from dllm import UserError
from dllm.app.command_line.main import main
from dllm.parts import (
    SUITES,
    Choice,
    JsonSchema,
    ParallelBench,
    Regex,
    Task,
    composed,
    is_word,
    measurable,
    questions,
    shape_of,
    task_names,
    task_of,
    write_list,
)
from dllm.tasks.mini import suite as mini_suite
from dllm.tasks.mini import tasks as mini
from tests.support.tiny import make_tiny


def configured(*overrides: str) -> Task:
    config = OmegaConf.to_container(composed(["task=parallelbench", *overrides]), resolve=True)
    assert isinstance(config, dict)
    return task_of(config["task"])


@pytest.mark.parametrize(
    ("overrides", "suite"),
    [([], "mini"), (["model=mini-dream"], "mini"), (["model=llada-8b-instruct"], "r1"), (["task.suite=r2"], "r2")],
)
def test_the_model_decides_the_suite_unless_the_user_does(overrides: list[str], suite: str) -> None:
    assert configured(*overrides, "task.count=1").stamp()["suite"] == suite


@pytest.mark.parametrize(("suite", "asked", "missing"), [("r1", 15, 2), ("r2", 15, 2), ("mini", 15, 0)])
def test_all_tasks_that_can_be_asked_are(suite: str, asked: int, missing: int) -> None:
    task = ParallelBench(suite, count=2)
    assert len(task.items()) == 2 * asked and len({item.task for item in task.items()}) == asked
    assert len({item.id for item in task.items()}) == len(task.items())
    absent = {name: words for name, words in task.missing().items() if "/" in name}
    assert len(absent) == missing and all("task.path=FOLDER" in words for words in absent.values())
    assert ("grammar_score" in task.missing()) == (suite != "mini")


@pytest.mark.parametrize("suite", ["r1", "r2", "mini"])
def test_right_answers_are_right_and_prompts_are_chats(suite: str) -> None:
    for item in ParallelBench(suite, ["waiting_line"], count=8).items():
        task = ParallelBench(suite, [item.task], count=8)
        chat: Any = item.prompt
        assert chat[-1]["role"] == "user" and len(chat) == (1 if suite == "mini" else 3)
        truth: Any = item.truth if suite == "mini" else item.truth["answer"]
        answer = truth if isinstance(truth, str) else truth.get("example") or write_list(truth["output"])
        assert task.score(item, answer) == {"score": 1, "score_strict": 1}
        assert task.score(item, "")["score"] == 0
        assert (item.budget, item.stop) == (32, ("\n\n",) if suite == "r2" else ())


def test_sizes_and_budgets_are_the_papers() -> None:
    task = ParallelBench("r1", ["waiting_line", "puzzle", "easy", "waiting_line_n15/copy"])
    sizes = {name: sum(item.task == name for item in task.items()) for name in {item.task for item in task.items()}}
    assert sizes.pop("puzzle/sudoku_n4_12") == 108 and set(sizes.values()) == {100} and len(sizes) == 13
    budgets = {item.task.partition("/")[0]: item.budget for item in task.items()}
    assert budgets == {"waiting_line": 32, "puzzle": 64, "words_to_sentence": 64, "waiting_line_n15": 128}


def test_names_groups_and_short_names() -> None:
    assert task_names("r1", "all") == [name for name, spec in SUITES["r1"].items() if not spec.extra]
    assert task_names("r1", ["sort", "waiting_line/copy"]) == ["waiting_line/copy", "waiting_line/sort"]
    assert task_names("r1", "puzzle") == ["puzzle/latin_square_n4", "puzzle/sudoku_n4_12"]
    assert len(task_names("r1", ["waiting_line_n15", "easy_n7"])) == 11
    assert task_names("mini", ["words_to_sentence", "copy"]) == ["waiting_line/copy", "words_to_sentence"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tasks": ["shufle"]}, "Did you mean 'shuffle'"),
        ({"tasks": "waiting_line/cpoy"}, "Did you mean 'waiting_line/copy'"),
        ({"tasks": ["copy", "waitingline"]}, "Did you mean 'waiting_line'"),
        ({"suite": "mini", "tasks": ["samsum"]}, "task.tasks='samsum' is unknown"),
        ({"tasks": [3]}, "task.tasks=3 is unknown"),
        ({"tasks": []}, "asks for nothing"),
        ({"tasks": "samsum"}, "no question that can be asked"),
        ({"suite": "R1"}, "Did you mean 'r1'"),
        ({"count": 0}, "at least 1"),
        ({"tasks": None}, "must be all, a name or a list"),
        ({"count": 101}, "more than the 100 questions of waiting_line/copy"),
        ({"path": "no_such_folder"}, "is not a folder here"),
        ({"suite": "mini", "path": "owner/name"}, "holds no questions of suite=mini"),
        ({"tasks": "copy", "bertscore": "roberta-large"}, "judges none of the tasks chosen"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        ParallelBench(**settings)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [("task.count=many", "task.count='many'"), ("task.count=1.5", "whole number"), ("task.seed=null", "task.seed")],
)
def test_values_of_another_kind_are_named(override: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        configured(override)


def test_a_choice_without_questions_is_refused() -> None:
    with pytest.raises(UserError, match="holds no questions.*parallelbench"):
        task_of({"name": "check", "run": "dllm.app.commands.check.run"})
    assert "parallelbench" in measurable() and "check" not in measurable()


@pytest.mark.parametrize("suite", ["r1", "r2", "mini"])
def test_the_stamp_changes_with_the_questions_and_with_nothing_else(suite: str) -> None:
    stamp = ParallelBench(suite, ["copy", "sort"], 4).stamp()
    assert stamp == ParallelBench(suite, ["sort", "copy"], 4).stamp()
    for other in (ParallelBench(suite, ["copy"], 4), ParallelBench(suite, ["copy", "sort"], 5)):
        assert other.stamp()["data"] != stamp["data"]
    seeded = ParallelBench(suite, ["copy", "sort"], 4, seed=1).stamp()
    assert seeded["data"] != stamp["data"] and seeded["template"] == stamp["template"]


def test_suites_have_stamps_of_their_own() -> None:
    stamps = [ParallelBench(suite, ["copy", "shuffle"], 4).stamp() for suite in ("r1", "r2", "mini")]
    for key in ("suite", "template", "data"):
        assert len({stamp[key] for stamp in stamps}) == 3


def test_mini_questions_are_those_that_no_model_was_trained_on() -> None:
    task = ParallelBench("mini", count=5, seed=1)
    for item in task.items():
        samples = mini.generate(mini_suite.SUITE_NAMES[item.task], 1, 5)
        sample = samples[int(item.id.rpartition("/")[2])]
        assert item.prompt == sample.messages and sample.split == "test"
        assert item.budget == mini.longest(sample.task)
        assert task.score(item, sample.answer)["score"] == 1


def test_a_run_says_what_cannot_be_asked_or_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["model.path=tiny", "task.suite=r1", "task.count=1", "task.tasks=[easy,samsum]", "gen_length=2"]
    make_tiny(tmp_path / "tiny")
    monkeypatch.setattr(sys, "argv", ["run.py", "task=parallelbench", *settings])
    main()
    said = capsys.readouterr().err
    assert "samsum is left out" in said and "task.grammar=URL" in said and "chatgpt" not in said


RECORDS = [{"name": "Kai", "age": 7, "town": "Ulm"}, {"name": "Ada", "age": 36, "town": "Bonn"}]
ASSIGN = {"names": ["Kai", "Ada"], "towns": ["Ulm", "Bonn"]}


@pytest.mark.parametrize("task", [task for task in mini.TASKS if task != "words_to_sentence"])
def test_right_answers_have_the_shape(task: str) -> None:
    for item in mini.generate(task, 1, 3):
        shape = shape_of(task, item.truth)
        assert shape is not None and is_word(shape, item.answer)
        assert not is_word(shape, item.answer + "!") and not is_word(shape, item.answer[:-1])
        assert not is_word(shape, f"The answer is {item.answer}")


def test_a_shape_does_not_tell_the_answer() -> None:
    given = ["Kai", "Ada", "Ben"]
    shape = shape_of("sort", {"input": given, "output": sorted(given)})
    assert shape is not None and is_word(shape, json.dumps(given))
    assert not is_word(shape, json.dumps(["Kai"] * 3)), "each word once"
    many = shape_of("sort", {"input": [f"n{number}" for number in range(9)]})
    assert many is not None and is_word(many, json.dumps(["n0"] * 9)), "many words may stand there again"
    assert not is_word(shape, json.dumps(given[:2])) and not is_word(shape, json.dumps([*given[:2], "Eve"]))
    longer = shape_of("insert_random", {"input": given, "word": "Eve"})
    assert longer is not None and is_word(longer, json.dumps([*given, "Eve"]))
    assert not is_word(longer, json.dumps(given))


def test_records_have_their_members_and_kinds() -> None:
    shape = shape_of("records", {"records": RECORDS})
    assert shape is not None and is_word(shape, json.dumps(RECORDS)) and is_word(shape, json.dumps(RECORDS, indent=1))
    assert not is_word(shape, json.dumps(RECORDS[:1])) and not is_word(shape, json.dumps([{"name": "Kai"}] * 2))
    assert not is_word(shape, json.dumps([{**one, "age": "7"} for one in RECORDS]))
    dealt = [{"name": name, "town": town} for name, town in zip(ASSIGN["names"], ASSIGN["towns"], strict=True)]
    shape = shape_of("assign", ASSIGN)
    assert shape is not None and is_word(shape, json.dumps(dealt))
    assert not is_word(shape, json.dumps([{**one, "town": "Rome"} for one in dealt]))


def test_a_sentence_has_no_shape_and_a_question_carries_its_own() -> None:
    assert shape_of("words_to_sentence", {"words": ["a"]}) is None
    (asked,) = questions(["waiting_line/copy"], 1, 3).items
    assert isinstance(asked.constraint, JsonSchema) and len(asked.constraint.text) > 50
    (square,) = questions(["puzzle/latin_square"], 1, 3).items
    assert isinstance(square.constraint, Regex)


@pytest.mark.parametrize("text", ["", "a", "ab", "aab", "\udc80", "é"])
def test_a_word_is_what_python_says(text: str) -> None:
    assert is_word(Regex("a+b?"), text) == bool(re.fullmatch("a+b?", text))
    assert is_word(Choice(["ab", "é"]), text) == (text in ("ab", "é"))
