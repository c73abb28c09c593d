"""Held-out items of the mini models as questions with alternatives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dllm.tasks.mini import tasks as mini

SIZES = (5, 8)  # names of a list


@dataclass(frozen=True)
class Item:
    """One question: what the model is told, what is before and after the slot, the alternatives, the truth."""

    messages: list[dict[str, str]]
    before: str
    behind: str
    values: tuple[str, ...]
    truth: str


@dataclass(frozen=True)
class Several:
    """Questions on one canvas. pieces: its texts between the slots, one more than there are truths. counted: the first
    answer that counts."""

    messages: list[dict[str, str]]
    pieces: tuple[str, ...]
    values: tuple[str, ...]
    truths: tuple[str, ...]
    counted: int = 0


def names_in_order(count: int, seed: int, names: str = "known") -> Iterator[Item]:
    """The first of 5 to 8 names, sorted."""
    for sample in mini.generate("sort", seed, count, "test", SIZES, names):
        found = json.loads(sample.answer)
        yield Item(sample.messages, '["', '", "', tuple(sample.truth["input"]), found[0])


def second_names(count: int, seed: int) -> Iterator[Several]:
    """The second of 5 to 8 names, sorted, while the first one is masked, too."""
    for sample in mini.generate("sort", seed, count, "test", SIZES):
        first, second, *_ = json.loads(sample.answer)
        pieces = ('["', '", "', '", "')
        yield Several(sample.messages, pieces, tuple(sample.truth["input"]), (first, second), 1)


def records(
    count: int, seed: int, names: str = "known"
) -> list[tuple[list[dict[str, str]], str, list[dict[str, str]]]]:
    """Messages, answer and rows of items of 3 to 5 records."""
    samples = mini.generate("records", seed, count, "test", (3, 5), names)
    return [(sample.messages, sample.answer, json.loads(sample.answer)) for sample in samples]


def towns_of(rows: Sequence[Sequence[dict[str, str]]]) -> tuple[str, ...]:
    """All towns, in order."""
    return tuple(sorted({row["town"] for one in rows for row in one}))


def towns_of_records(count: int, seed: int) -> Iterator[Item]:
    """The town in the first record, among those of all records of all items."""
    found = records(count, seed)
    towns = towns_of([rows for _, _, rows in found])
    for messages, answer, rows in found:
        before, _, behind = answer.partition(rows[0]["town"])
        yield Item(messages, before, behind, towns, rows[0]["town"])


def all_towns(count: int, seed: int) -> Iterator[Several]:
    """The towns of all records."""
    found = records(count, seed)
    towns = towns_of([rows for _, _, rows in found])
    for messages, answer, rows in found:
        pieces = re.split('(?<="town": ")[^"]*', answer)
        yield Several(messages, tuple(pieces), towns, tuple(row["town"] for row in rows))


def ages_of_records(count: int, seed: int) -> Iterator[Item]:
    """The age in the first record, among all from 2 to 99."""
    for messages, answer, rows in records(count, seed):
        age = str(rows[0]["age"])
        before, _, behind = answer.partition(age)
        yield Item(messages, before, behind, tuple(str(n) for n in range(2, 100)), age)


def last_names(count: int, seed: int) -> Iterator[Item]:
    """The spelt name in the last record, among those of the item, with JSON on both sides."""
    for messages, answer, rows in records(count, seed, "spelt"):
        name = rows[-1]["name"]
        before, _, behind = answer.rpartition(name)
        yield Item(messages, before, behind, tuple(sorted({row["name"] for row in rows})), name)
