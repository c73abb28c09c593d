"""The suite ``mini``: determinism, disjoint splits, and a scorer that accepts right answers and nothing else."""

from __future__ import annotations

from random import Random

import pytest

from dllm.tasks.parallelbench import mini, sentences
from dllm.tasks.parallelbench.scoring import write_list
from dllm.tasks.parallelbench.sudoku import GRIDS, solutions


@pytest.mark.parametrize("task", mini.TASKS)
def test_generation_is_a_function_of_its_arguments(task: str) -> None:
    assert mini.generate(task, 5, 20) == mini.generate(task, 5, 20)
    assert mini.generate(task, 5, 20) != mini.generate(task, 6, 20)
    assert mini.generate(task, 5, 20)[:7] == mini.generate(task, 5, 7)


@pytest.mark.parametrize("task", mini.TASKS)
def test_splits_share_no_item(task: str) -> None:
    train, test = ({sample.key for sample in mini.generate(task, 3, 300, split)} for split in ("train", "test"))
    assert train and test and not train & test


def test_list_tasks_hold_back_the_same_name_sets() -> None:
    trained = {s.key for task in ("copy", "sort") for s in mini.generate(task, 0, 500, "train", (2, 2))}
    held_back = {s.key for task in ("shuffle", "remove_random") for s in mini.generate(task, 0, 100, "test", (2, 2))}
    assert not trained & held_back


@pytest.mark.parametrize("task", mini.TASKS)
def test_generated_answers_are_right(task: str) -> None:
    assert all(sample.score(sample.answer)["score"] == 1 for sample in mini.generate(task, 9, 100))


@pytest.mark.parametrize("task", mini.TASKS)
def test_corrupted_answers_are_wrong(task: str) -> None:
    for sample in mini.generate(task, 9, 50):
        # Doubling the first item, losing the second half, and saying nothing at all.
        first = sample.answer.replace('["', '["X", "', 1) if "[" in sample.answer else "9" + sample.answer
        for broken in (first, sample.answer[: len(sample.answer) // 2], ""):
            assert sample.score(broken)["score"] == 0, broken


@pytest.mark.parametrize("task", ["shuffle", "insert_random", "remove_random", "replace_random"])
def test_returning_the_given_list_is_wrong(task: str) -> None:
    assert all(s.score(write_list(s.truth["input"]))["score"] == 0 for s in mini.generate(task, 2, 30))


def test_sudoku_puzzles_have_one_solution() -> None:
    assert len(GRIDS) == 288
    for sample in mini.generate("sudoku", 1, 30):
        puzzle = sample.prompt.partition("\n")[2].replace("\n", "")
        assert puzzle.count("0") == 4 and len(solutions(puzzle)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "An old dog paints a lamp near the river.",
        "These dogs paint two lamps behind the mill.",
        "Every owl wants an umbrella beyond the old lake.",
        "The dog paint a lamp near the river.",
        "A owl paints a lamp near the river.",
        "Two dog paint a lamp near the river.",
        "The dogs paints a lamp near the river.",
        "the dog paints a lamp near the river.",
        "The dog paints a lamp near the river",
        "The dog paints a lamp near a river.",
        "The dog paints near the river.",
        "The  dog paints a lamp near the river.",
        "The.",
        "",
    ],
)  # fmt: skip
def test_parser_knows_agreement(text: str) -> None:
    right = ("An old dog paints a lamp near the river.", "These dogs paint two lamps behind the mill.")
    assert sentences.grammatical(text) == (text in right)


def test_swapping_two_words_of_a_sentence_breaks_it() -> None:
    rng, caught = Random(0), 0
    for sample in mini.generate("words_to_sentence", 4, 50):
        words = sample.answer[:-1].split()
        at = rng.randrange(len(words) - 1)
        words[at], words[at + 1] = words[at + 1], words[at]
        caught += sample.score(" ".join(words) + ".")["score"] == 0
    assert caught == 50
