"""Ten tasks on a list of two to eight names; positions count from 0."""

from __future__ import annotations

from functools import partial
from typing import Any

from dllm.tasks.mini.items import Draw, Make, Sample
from dllm.tasks.parallelbench.scoring import write_list

SIZES = (2, 8)


def _sample(draw: Draw, task: str, items: list[str], answer: list[str], **slots: str) -> Sample:
    truth: dict[str, Any] = {"input": items, "output": answer}
    if "word" in slots:
        truth["word"], slots["word"] = slots["word"], draw.quote(slots["word"])
    slots["items"] = draw.list_text(items)
    return draw.sample(task, slots, write_list(answer), truth, " ".join(sorted(items)), len(items))


def _copy(draw: Draw) -> Sample:
    items = draw.some(draw.size(*SIZES))
    return _sample(draw, "copy", items, items)


def _reverse(draw: Draw) -> Sample:
    items = draw.some(draw.size(*SIZES))
    return _sample(draw, "reverse", items, items[::-1])


def _sort(draw: Draw) -> Sample:
    items = draw.some(draw.size(*SIZES))
    return _sample(draw, "sort", items, sorted(items, key=str.casefold))


def _shuffle(draw: Draw) -> Sample:
    items = draw.some(draw.size(*SIZES))
    answer = items
    while answer == items:
        answer = draw.rng.sample(items, len(items))
    return _sample(draw, "shuffle", items, answer)


def _insert(task: str, draw: Draw) -> Sample:
    *items, word = draw.some(draw.size(*SIZES) + 1)
    at = draw.rng.randint(0, len(items))
    return _sample(draw, task, items, [*items[:at], word, *items[at:]], word=word, at=str(at))


def _remove(task: str, draw: Draw) -> Sample:
    items = draw.some(draw.size(*SIZES))
    at = draw.rng.randrange(len(items))
    return _sample(draw, task, items, items[:at] + items[at + 1 :], at=str(at))


def _replace(task: str, draw: Draw) -> Sample:
    *items, word = draw.some(draw.size(*SIZES) + 1)
    at = draw.rng.randrange(len(items))
    return _sample(draw, task, items, [*items[:at], word, *items[at + 1 :]], word=word, at=str(at))


TASKS: dict[str, Make] = {
    "copy": _copy,
    "reverse": _reverse,
    "sort": _sort,
    "shuffle": _shuffle,
    **{task: partial(_insert, task) for task in ("insert_index", "insert_random")},
    **{task: partial(_remove, task) for task in ("remove_index", "remove_random")},
    **{task: partial(_replace, task) for task in ("replace_index", "replace_random")},
}
