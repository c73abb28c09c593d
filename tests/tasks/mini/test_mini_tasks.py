"""The suite of the mini models: determinism, disjoint splits, scorers that take right answers and nothing else."""

from __future__ import annotations

import json
from random import Random

import pytest

from dllm.parts import GRIDS, Draw, solutions, write_list
from dllm.tasks.mini import lexicon, records, tasks
from dllm.tasks.parallelbench import sentences


@pytest.mark.parametrize("task", tasks.TASKS)
def test_generation_is_a_function_of_its_arguments(task: str) -> None:
    assert tasks.generate(task, 5, 20) == tasks.generate(task, 5, 20)
    assert tasks.generate(task, 5, 20) != tasks.generate(task, 6, 20)
    assert tasks.generate(task, 5, 20)[:7] == tasks.generate(task, 5, 7)


@pytest.mark.parametrize("task", tasks.TASKS)
def test_splits_share_no_item(task: str) -> None:
    train, test = ({sample.key for sample in tasks.generate(task, 3, 80, split)} for split in ("train", "test"))
    assert train and test and not train & test


@pytest.mark.parametrize("names", ["known", "new", "mixed", "unseen"])
@pytest.mark.parametrize("task", tasks.TASKS)
def test_generated_answers_are_right(task: str, names: str) -> None:
    for wording in ("plain", "trained", "unseen"):
        items = tasks.generate(task, 9, 10, names=names, wording=wording)
        assert all(tasks.score(sample, sample.answer)["score"] == 1 for sample in items)


@pytest.mark.parametrize("task", tasks.TASKS)
def test_corrupted_answers_are_wrong(task: str) -> None:
    for sample in tasks.generate(task, 9, 25):
        half = sample.answer[: len(sample.answer) // 2]
        swapped = " ".join(reversed(sample.answer.split(" ")))
        for broken in (half, "", swapped if swapped != sample.answer and task not in tasks.FREE else ""):
            assert tasks.score(sample, broken)["score"] == 0, broken


def test_towns_may_be_dealt_in_any_order_but_each_once() -> None:
    truth = {"names": ["Ada", "Ben"], "towns": ["Oslo", "Rome"]}
    for dealt, right in ((("Oslo", "Rome"), 1), (("Rome", "Oslo"), 1), (("Oslo", "Oslo"), 0), (("Rome", "Lima"), 0)):
        text = json.dumps([{"name": n, "town": t} for n, t in zip(truth["names"], dealt, strict=True)])
        assert records.judge_assign(text, **truth)["score"] == right
    swapped = '[{"name": "Ben", "town": "Oslo"}, {"name": "Ada", "town": "Rome"}]'
    assert records.judge_assign(swapped, **truth)["score"] == 0
    assert records.judge_assign('[{"name": "Ada"}, {"town": ["Oslo"]}]', **truth)["score"] == 0


@pytest.mark.parametrize("task", ["latin_square"])
def test_latin_squares_have_every_letter_once_in_rows_and_columns(task: str) -> None:
    for sample in tasks.generate(task, 4, 40):
        rows = [line.split(",") for line in sample.answer.splitlines()]
        wanted = sorted(sample.truth["symbols"])
        assert all(sorted(line) == wanted for line in [*rows, *zip(*rows, strict=True)])


def test_training_never_sees_unseen_words() -> None:
    rng = Random(3)
    seen = {word for _ in range(300) for word in Draw(rng, names="mixed").some(6)} | lexicon.whole()
    held_out = {word for _ in range(300) for word in Draw(rng, names="unseen").some(6)} | set(lexicon.NEW_NAMES)
    assert len(held_out) > 500 and len(lexicon.NEW_NAMES) > 100
    assert not {word.lower() for word in seen} & {word.lower() for word in held_out}


@pytest.mark.parametrize("task", tasks.TASKS)
def test_sizes_are_as_asked(task: str) -> None:
    for size in (2, 5, 8):
        found = {sample.size for sample in tasks.generate(task, 0, 5, sizes=(size, size))}
        assert len(found) == 1 and (found == {size} or task not in tasks.TASKS or not found - set(range(3, 9)))


@pytest.mark.parametrize("task", ["shuffle", "insert_random", "remove_random", "replace_random"])
def test_returning_the_given_list_is_wrong(task: str) -> None:
    given = ((sample, write_list(sample.truth["input"])) for sample in tasks.generate(task, 2, 30))
    assert all(tasks.score(sample, text)["score"] == 0 for sample, text in given)


def test_sudoku_puzzles_have_one_solution() -> None:
    assert len(GRIDS) == 288
    for sample in tasks.generate("sudoku", 1, 30, wording="plain"):
        puzzle = sample.prompt.partition("\n")[2].replace("\n", "")
        assert sum(mark not in "1234" for mark in puzzle) == 4
        assert len(solutions("".join(mark if mark in "1234" else "0" for mark in puzzle))) == 1


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
)
def test_parser_knows_agreement(text: str) -> None:
    right = ("An old dog paints a lamp near the river.", "These dogs paint two lamps behind the mill.")
    assert sentences.grammatical(text) == (text in right)


def test_swapping_two_words_of_a_sentence_breaks_it() -> None:
    rng, caught = Random(0), 0
    for sample in tasks.generate("words_to_sentence", 4, 50):
        said = sample.answer[:-1].split()
        at = rng.randrange(len(said) - 1)
        said[at], said[at + 1] = said[at + 1], said[at]
        caught += tasks.score(sample, " ".join(said) + ".")["score"] == 0
    assert caught == 50
