"""Items of suites r1 and r2: questions that are generated or read from a copy, in their wording, with their truths."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeVar

from dllm.common.errors import UserError
from dllm.tasks.base import Item
from dllm.tasks.parallelbench.catalog import STOP_STRINGS, SUITES, TaskSpec, templates
from dllm.tasks.parallelbench.record import Record, chat_of
from dllm.tasks.parallelbench.sources import read_copy
from dllm.tasks.parallelbench.waiting_line import MakeRecord

SOURCE = "summaries and paraphrases cannot be generated: give a copy of the benchmark's files as task.path=FOLDER"


@dataclass
class Questions:
    items: list[Item] = field(default_factory=list)  # of all chosen tasks
    missing: dict[str, str] = field(default_factory=dict)  # tasks without any, and why
    wording: dict[str, str] = field(default_factory=dict)  # the template of each task


def classic_questions(suite: str, tasks: Sequence[str], count: int | None, seed: int, path: str | None) -> Questions:
    """Raises UserError when more is asked for than there is, or a copy cannot be read."""
    out = Questions()
    for name in tasks:
        spec = SUITES[suite][name]
        if count is not None and count > spec.count:
            raise UserError(f"task.count={count} is more than the {spec.count} questions of {name}. Ask for fewer.")
        records = _records(suite, spec, count, seed, path, out)
        numbers = range(len(records)) if count is None or not records else pick_evenly(range(len(records)), count)
        out.items += [_item(suite, spec, number, records[number], out.wording[name]) for number in numbers]
    if not out.items:
        raise UserError(f"task.tasks holds no question that can be asked: {' '.join(out.missing.values())}")
    return out


def _records(
    suite: str, spec: TaskSpec, count: int | None, seed: int, path: str | None, out: Questions
) -> list[Record]:
    """All questions of a task; what is missing, and the wording, go to ``out``."""
    wording, records = templates(suite)[spec.template], None
    if path is not None:
        copy = read_copy(path, suite, spec, spec.count if count is None else count)
        if copy is None:
            out.missing[spec.name] = f"{spec.name} is left out: task.path={path!r} does not hold it."
            return []
        wording, records = copy.template or wording, copy.records
    elif spec.make is None:
        out.missing[spec.name] = f"{spec.name} is left out, since {SOURCE}."
        return []
    out.wording[spec.name] = wording
    return generated_records(suite, spec, seed) if records is None else records


def _item(suite: str, spec: TaskSpec, number: int, record: Record, template: str) -> Item:
    truth = {"metric": spec.metric, "answer": json.loads(json.dumps(record.answer))}  # as result files hold it
    chat = chat_of(template, record)
    return Item(f"{spec.name}/{number}", spec.name, chat, truth, spec.budget, STOP_STRINGS[suite])


_T = TypeVar("_T")


def generated_records(suite: str, spec: TaskSpec, seed: int) -> list[Record]:
    """All ``spec.count`` questions of a task, lists ordered by length. In r1 the generator goes on and makes a solved
    example for each question; in r2 one example serves all."""
    assert spec.make is not None
    rng = Random(task_seed(spec.short, seed))
    records = [spec.make(rng) for _ in range(spec.count)] if spec.lengths is None else _by_length(spec, rng)
    if not spec.shot:
        return records
    shots = [spec.make(rng) for _ in records] if suite == "r1" else [_unlike(records, spec.make, rng)] * len(records)
    return [replace(record, shots=(shot,)) for record, shot in zip(records, shots, strict=True)]


def task_seed(name: str, seed: int) -> int:
    """The benchmark's seed of a task; its own ``seed`` is 42."""
    return (int(hashlib.sha256(name.encode()).hexdigest(), 16) + seed) % (2**16 - 1)


def _by_length(spec: TaskSpec, rng: Random) -> list[Record]:
    """Equally many questions of each length; surplus ones are dropped."""
    assert spec.make is not None and spec.lengths is not None
    shortest, longest = spec.lengths
    quota = spec.count // (longest - shortest + 1)
    by_length: dict[int, list[Record]] = defaultdict(list)
    while any(len(by_length[length]) < quota for length in range(shortest, longest + 1)):
        record = spec.make(rng)
        same = by_length[record.fields["context"].count(", ") + 1]
        if len(same) < quota:
            same.append(record)
    return [record for length in sorted(by_length) for record in by_length[length]]


def _unlike(records: Sequence[Record], make: MakeRecord, rng: Random) -> Record:
    """A question that is not among ``records``."""
    fields = [record.fields for record in records]
    while (shot := make(rng)).fields in fields:
        pass
    return shot


def pick_evenly(items: Sequence[_T], count: int) -> list[_T]:
    """``count`` of the items, evenly spaced, so that a few of them still have every length."""
    return [items[number * len(items) // count] for number in range(count)]
