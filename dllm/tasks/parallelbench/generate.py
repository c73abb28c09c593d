"""Questions of a task, seeded as the benchmark seeds its own generator."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from dllm.tasks.parallelbench.catalog import Spec
from dllm.tasks.parallelbench.record import Record
from dllm.tasks.parallelbench.waiting_line import Make

T = TypeVar("T")


def generate(suite: str, spec: Spec, seed: int) -> list[Record]:
    """All questions of a task that can be made: ``spec.count``, lists ordered by length. In r1 the generator goes on
    after them and makes a solved example for each; in r2 one example serves all."""
    assert spec.make is not None
    rng = Random(seed_of(spec.short, seed))
    records = [spec.make(rng) for _ in range(spec.count)] if spec.lengths is None else _by_length(spec, rng)
    if not spec.shot:
        return records
    shots = [spec.make(rng) for _ in records] if suite == "r1" else [_unlike(records, spec.make, rng)] * len(records)
    return [replace(record, shots=(shot,)) for record, shot in zip(records, shots, strict=True)]


def seed_of(name: str, seed: int) -> int:
    """The benchmark's seed of a task; its own ``seed`` is 42."""
    return (int(hashlib.sha256(name.encode()).hexdigest(), 16) + seed) % (2**16 - 1)


def _by_length(spec: Spec, rng: Random) -> list[Record]:
    """Equally many of each length; those of a length that is full are dropped."""
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


def _unlike(records: Sequence[Record], make: Make, rng: Random) -> Record:
    """A question that is none of ``records``."""
    asked = [record.fields for record in records]
    while (shot := make(rng)).fields in asked:
        pass
    return shot


def spaced(items: Sequence[T], count: int) -> list[T]:
    """``count`` of the items at even distances, so that few of them still have every length."""
    return [items[number * len(items) // count] for number in range(count)]
