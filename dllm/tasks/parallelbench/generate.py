"""Questions of a task, seeded as the benchmark seeds its own generator."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from dllm.tasks.parallelbench.catalog import TaskSpec
from dllm.tasks.parallelbench.record import Record
from dllm.tasks.parallelbench.waiting_line import MakeRecord

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
    """A question that is none of ``records``."""
    asked = [record.fields for record in records]
    while (shot := make(rng)).fields in asked:
        pass
    return shot


def spaced(items: Sequence[_T], count: int) -> list[_T]:
    """``count`` of the items, evenly spaced, so that a few of them still have every length."""
    return [items[number * len(items) // count] for number in range(count)]
