"""The ten list tasks of suites r1 and r2, as ParallelBench generates them (arXiv 2510.04767; own list of names)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from dllm.tasks.mini.word_lists import FULL_NAMES
from dllm.tasks.parallelbench.record import Answer, Record
from dllm.tasks.parallelbench.scoring import write_list

MakeRecord = Callable[[Random], Record]
CHANGES_OF_ONE = ("insert", "remove", "replace")  # of one name, at a given place or at any
OPERATIONS = (
    *("copy", "reverse", "sort", "shuffle"),
    *(f"{change}_{place}" for change in CHANGES_OF_ONE for place in ("index", "random")),
)


def list_maker(operation: str, lengths: tuple[int, int]) -> MakeRecord:
    """Makes questions about lists of ``lengths[0]`` to ``lengths[1]`` names. Positions count from zero."""
    work = _WORK[operation.partition("_")[0]]

    def make(rng: Random) -> Record:
        names = rng.sample(FULL_NAMES, rng.randint(*lengths))
        fields, right = work(rng, names)
        at = fields.pop("index", None)
        if at is not None and operation.endswith("_index"):
            fields["index"] = at
        answer: Answer = write_list(right)
        if operation == "shuffle" or operation.endswith("_random"):  # many right answers: this one is an example
            answer = {"input": names, **fields, "example": write_list(right)}
        return Record({"context": write_list(names), **fields}, answer)

    return make


ListWork = tuple[dict[str, Any], list[str]]  # fields beside the list, and one right answer


def _copy(rng: Random, names: list[str]) -> ListWork:
    return {}, names


def _reverse(rng: Random, names: list[str]) -> ListWork:
    return {}, names[::-1]


def _sort(rng: Random, names: list[str]) -> ListWork:
    """By the whole name, as the benchmark's answers are, although its wording says by last name."""
    return {}, sorted(names)


def _shuffle(rng: Random, names: list[str]) -> ListWork:
    answer = names[:]
    while answer == names:
        rng.shuffle(answer)
    return {}, answer


def _insert(rng: Random, names: list[str]) -> ListWork:
    word, at = _newcomer(rng, names), rng.randint(0, len(names))
    return {"word": word, "index": at}, [*names[:at], word, *names[at:]]


def _remove(rng: Random, names: list[str]) -> ListWork:
    at = rng.randrange(len(names))
    return {"index": at}, names[:at] + names[at + 1 :]


def _replace(rng: Random, names: list[str]) -> ListWork:
    word, at = _newcomer(rng, names), rng.randrange(len(names))
    return {"word": word, "index": at}, [*names[:at], word, *names[at + 1 :]]


def _newcomer(rng: Random, names: list[str]) -> str:
    while (word := rng.choice(FULL_NAMES)) in names:
        pass
    return word


_WORK = {
    "copy": _copy,
    "reverse": _reverse,
    "sort": _sort,
    "shuffle": _shuffle,
    "insert": _insert,
    "remove": _remove,
    "replace": _replace,
}
