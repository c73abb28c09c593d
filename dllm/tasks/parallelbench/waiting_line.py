"""The ten list tasks of suites r1 and r2, as ParallelBench generates them (arXiv 2510.04767; own list of names)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from dllm.tasks.mini.word_lists import FULL_NAMES
from dllm.tasks.parallelbench.record import Answer, Record
from dllm.tasks.parallelbench.scoring import write_list

MakeRecord = Callable[[Random], Record]
OPERATIONS = (
    "copy", "reverse", "sort", "shuffle", "insert_index", "insert_random", "remove_index", "remove_random",
    "replace_index", "replace_random",
)  # fmt: skip


def list_maker(operation: str, lengths: tuple[int, int]) -> MakeRecord:
    """Makes questions about lists of ``lengths[0]`` to ``lengths[1]`` names. Positions count from zero."""
    work = _WORK[operation.partition("_")[0]]

    def make(rng: Random) -> Record:
        given = rng.sample(FULL_NAMES, rng.randint(*lengths))
        fields, right = work(rng, given)
        at = fields.pop("index", None)
        if at is not None and operation.endswith("_index"):
            fields["index"] = at
        answer: Answer = write_list(right)
        if operation == "shuffle" or operation.endswith("_random"):  # many right answers: this one is an example
            answer = {"input": given, **fields, "example": write_list(right)}
        return Record({"context": write_list(given), **fields}, answer)

    return make


Worked = tuple[dict[str, Any], list[str]]  # fields beside the list, and one right answer


def _copy(rng: Random, given: list[str]) -> Worked:
    return {}, given


def _reverse(rng: Random, given: list[str]) -> Worked:
    return {}, given[::-1]


def _sort(rng: Random, given: list[str]) -> Worked:
    """By the whole name, as the benchmark's answers are, although its wording says by last name."""
    return {}, sorted(given)


def _shuffle(rng: Random, given: list[str]) -> Worked:
    answer = given[:]
    while answer == given:
        rng.shuffle(answer)
    return {}, answer


def _insert(rng: Random, given: list[str]) -> Worked:
    word, at = _newcomer(rng, given), rng.randint(0, len(given))
    return {"word": word, "index": at}, [*given[:at], word, *given[at:]]


def _remove(rng: Random, given: list[str]) -> Worked:
    at = rng.randrange(len(given))
    return {"index": at}, given[:at] + given[at + 1 :]


def _replace(rng: Random, given: list[str]) -> Worked:
    word, at = _newcomer(rng, given), rng.randrange(len(given))
    return {"word": word, "index": at}, [*given[:at], word, *given[at + 1 :]]


def _newcomer(rng: Random, given: list[str]) -> str:
    while (word := rng.choice(FULL_NAMES)) in given:
        pass
    return word


_WORK = {
    "copy": _copy, "reverse": _reverse, "sort": _sort, "shuffle": _shuffle,
    "insert": _insert, "remove": _remove, "replace": _replace,
}  # fmt: skip
