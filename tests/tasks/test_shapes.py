"""Shapes of answers: what a scorer calls right has the shape, and other texts have it only where json and re say so."""

from __future__ import annotations

import json
import re

import pytest

from dllm.constraints import Choice, JsonSchema, Regex
from dllm.tasks.answer_formats import is_word, shape_of
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.suite import questions

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
