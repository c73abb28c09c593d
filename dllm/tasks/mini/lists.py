"""Ten tasks on a list of two to eight names; positions count from 0."""

from __future__ import annotations

from typing import Any

from dllm.tasks.mini.items import Draw, Make, Sample
from dllm.tasks.parallelbench.scoring import write_list

SIZES = (2, 8)


def _sample(draw: Draw, task: str, given: list[str], answer: list[str], **slots: str) -> Sample:
    truth: dict[str, Any] = {"input": given, "output": answer}
    if "word" in slots:
        truth["word"], slots["word"] = slots["word"], draw.quote(slots["word"])
    slots["items"] = draw.listed(given)
    return draw.sample(task, slots, write_list(answer), truth, " ".join(sorted(given)), len(given))


def _copy(draw: Draw) -> Sample:
    given = draw.some(draw.size(*SIZES))
    return _sample(draw, "copy", given, given)


def _reverse(draw: Draw) -> Sample:
    given = draw.some(draw.size(*SIZES))
    return _sample(draw, "reverse", given, given[::-1])


def _sort(draw: Draw) -> Sample:
    given = draw.some(draw.size(*SIZES))
    return _sample(draw, "sort", given, sorted(given, key=str.casefold))


def _shuffle(draw: Draw) -> Sample:
    given = draw.some(draw.size(*SIZES))
    answer = given
    while answer == given:
        answer = draw.rng.sample(given, len(given))
    return _sample(draw, "shuffle", given, answer)


def _insert(task: str) -> Make:
    def make(draw: Draw) -> Sample:
        *given, word = draw.some(draw.size(*SIZES) + 1)
        at = draw.rng.randint(0, len(given))
        return _sample(draw, task, given, [*given[:at], word, *given[at:]], word=word, at=str(at))

    return make


def _remove(task: str) -> Make:
    def make(draw: Draw) -> Sample:
        given = draw.some(draw.size(*SIZES))
        at = draw.rng.randrange(len(given))
        return _sample(draw, task, given, given[:at] + given[at + 1 :], at=str(at))

    return make


def _replace(task: str) -> Make:
    def make(draw: Draw) -> Sample:
        *given, word = draw.some(draw.size(*SIZES) + 1)
        at = draw.rng.randrange(len(given))
        return _sample(draw, task, given, [*given[:at], word, *given[at + 1 :]], word=word, at=str(at))

    return make


TASKS: dict[str, Make] = {
    "copy": _copy,
    "reverse": _reverse,
    "sort": _sort,
    "shuffle": _shuffle,
    **{task: _insert(task) for task in ("insert_index", "insert_random")},
    **{task: _remove(task) for task in ("remove_index", "remove_random")},
    **{task: _replace(task) for task in ("replace_index", "replace_random")},
}
