"""Suites r1 and r2 as generated: sizes, lengths, right examples, and the released Latin squares to the letter."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

import pytest

from dllm.parts import (
    EVERYDAY,
    FULL_NAMES,
    RARE,
    SUITES,
    Judges,
    Record,
    TaskSpec,
    chat_of,
    filled_template,
    generated_records,
    metric_scores,
    pick_evenly,
    read_lenient,
    solutions,
    task_seed,
    templates,
)

MADE = [(suite, name) for suite, specs in SUITES.items() for name, spec in specs.items() if spec.make is not None]
LISTS = [pair for pair in MADE if pair[1].startswith("waiting_line/")]


def records(suite: str, name: str, seed: int = 42) -> tuple[TaskSpec, list[Record]]:
    spec = SUITES[suite][name]
    return spec, generated_records(suite, spec, seed)


def given(record: Record) -> list[str]:
    return read_lenient(record.fields["context"])


def test_there_are_seventeen_tasks_in_each_suite() -> None:
    for suite, texts in (("r1", "paraphrase_summarize"), ("r2", "text_writing/")):
        plain = [spec for spec in SUITES[suite].values() if not spec.extra]
        assert len(plain) == 17
        unmade = [spec.name for spec in plain if spec.make is None]
        assert len(unmade) == 2 and all(name.startswith(texts) for name in unmade)
    assert sum(spec.count for spec in SUITES["r1"].values() if not spec.extra) == 1708


@pytest.mark.parametrize(("suite", "name"), MADE)
def test_generation_is_a_function_of_its_seed(suite: str, name: str) -> None:
    spec, first = records(suite, name)
    assert len(first) == spec.count and records(suite, name)[1] == first
    assert records(suite, name, 43)[1] != first


@pytest.mark.parametrize(("suite", "name"), LISTS)
def test_lists_have_every_length_equally_often_in_order(suite: str, name: str) -> None:
    _, found = records(suite, name)
    lengths = [len(given(record)) for record in found]
    assert lengths == sorted(lengths) and Counter(lengths) == {3: 25, 4: 25, 5: 25, 6: 25}
    few = [len(given(record)) for record in pick_evenly(found, 8)]
    assert Counter(few) == {3: 2, 4: 2, 5: 2, 6: 2}


def test_long_lists_have_fifteen_names() -> None:
    assert {len(given(record)) for record in records("r1", "waiting_line_n15/copy")[1]} == {15}


@pytest.mark.parametrize(("suite", "name"), MADE)
def test_every_example_is_right_and_every_question_has_its_shots(suite: str, name: str) -> None:
    spec, found = records(suite, name)
    for record in found:
        assert len(record.shots) == spec.shot
        for each in (record, *record.shots):
            if "words" in name:
                words = each.answer["words"]  # type: ignore[index]
                assert len(set(words)) == len(words) and all(word in each.fields["words"] for word in words)
            else:
                assert metric_scores(spec.metric, each.solution, each.answer, Judges())["score"] == 1
    shown = {json.dumps([shot.fields, shot.answer]) for record in found for shot in record.shots}
    assert len(shown) == (0 if not spec.shot else 1 if suite == "r2" else spec.count)


@pytest.mark.parametrize("operation", ["insert_index", "remove_index", "replace_index"])
def test_positions_count_from_zero(operation: str) -> None:
    seen = set()
    for record in records("r1", f"waiting_line/{operation}")[1]:
        names, at, word = given(record), record.fields["index"], record.fields.get("word")
        names[at : at + (operation != "insert_index")] = [] if word is None else [word]
        assert read_lenient(record.solution) == names
        seen.add((at, len(given(record))))
    last = 0 if operation == "insert_index" else -1
    assert {(0, 3), (3 + last, 3), (6 + last, 6)} <= seen


@pytest.mark.parametrize(("suite", "name", "empty"), [("r1", "puzzle/sudoku_n4_12", 4), ("r2", "puzzles/sudoku_n4", 8)])
def test_sudokus_have_one_solution(suite: str, name: str, empty: int) -> None:
    _, found = records(suite, name)
    for record in found:
        shown = str(record.fields.get("sudoku") or record.fields.get("puzzle"))
        cells = shown.replace("\n", "").replace("_", "0")
        assert cells.count("0") == empty
        assert solutions(cells) == [record.solution.replace("\n", "")]


def test_the_words_of_a_level_are_as_it_says() -> None:
    everyday, rare = [set(words) for words in EVERYDAY.values()], set().union(*map(set, RARE.values()))
    for level in ("easy", "medium", "hard"):
        for record in records("r1", f"words_to_sentence/{level}")[1]:
            words = set(record.answer["words"])  # type: ignore[index]
            assert len(words) == 4
            assert (words <= rare) == (level == "hard")
            if level == "easy":
                assert any(words <= theme for theme in everyday)


@pytest.mark.parametrize(("count", "text"), [(1, "the word {0}."), (3, "the words {0}, {1}, and {2}.")])
def test_words_are_listed_in_english(count: int, text: str) -> None:
    spec, found = records("r1", f"words_to_sentence/easy_n{count}")
    words: Any = found[0].answer
    assert filled_template(templates("r1")[spec.template], found[0]).endswith(text.format(*words["words"]))


def test_seeds_are_the_benchmarks() -> None:
    names = ("copy", "reverse", "shuffle", "sort", "latin_square_n4")
    assert [task_seed(name, 42) for name in names] == [31940, 31383, 30142, 48898, 51291]


def test_latin_squares_are_the_released_ones() -> None:
    """Digest of symbols and example of the released questions 0, 4, ..., 28, read from published result files."""
    _, found = records("r2", "puzzles/latin_square_n4")
    text = "\n\n".join(f"{record.fields['symbols']}\n{record.solution}" for record in found[:32:4])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "308bc0f0ccb97750"
    assert records("r1", "puzzle/latin_square_n4")[1][0].answer == found[0].answer


def test_names_are_as_many_as_the_benchmarks() -> None:
    assert len(set(FULL_NAMES)) == len(FULL_NAMES) == 92 * 192
    assert max(map(len, FULL_NAMES)) <= 20  # six of them must fit in 32 tokens


@pytest.mark.parametrize(("suite", "name"), MADE)
def test_prompts_are_filled_and_end_with_the_question(suite: str, name: str) -> None:
    spec, found = records(suite, name)
    chat = chat_of(templates(suite)[spec.template], found[0])
    assert [message["role"] for message in chat] == (["user", "assistant"] * spec.shot) + ["user"]
    for message in chat:
        assert "{" not in message["content"] and "}" not in message["content"]
    for value in found[0].fields.values():
        assert str(value) in chat[-1]["content"] or (name == "puzzle/sudoku_n4_12" and value == 4)


def test_paragraphs_are_as_in_the_paper() -> None:
    """The list stands in a paragraph of its own; r1 ends with a line break, but for replace_random, and r2 does not."""
    for suite in SUITES:
        for name, spec in SUITES[suite].items():
            if not name.startswith("waiting_line/"):
                continue
            text = templates(suite)[spec.template]
            assert "{context}" in text.rstrip("\n").split("\n\n") and text.count("\n\n") >= 3
            assert text.endswith("\n") == (suite == "r1" and spec.short != "replace_random")
