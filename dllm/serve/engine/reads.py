"""Reads that wait for the decode thread: forwards that commit nothing, taken between turns (``scheduler``).

First come, first served, a forward of at most ``max_prefill_tokens`` columns at a time. Canvases of several requests
share a forward, but in exact mode, where each question has forwards of its own, and so the numbers that it has alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from dllm.common.errors import UserError
from dllm.models.bundle import Model
from dllm.scoring.decisions.reading import ReadCanvas, Reading, ReadQuery, read_canvases
from dllm.serve.engine.followers import Lead
from dllm.serve.engine.jobs import DeviceShare, JobFailure, Limits


@dataclass(frozen=True)
class ReadJob:
    """What one request reads at once."""

    groups: list[list[ReadQuery]]  # queries by question
    deadline: float  # by ``time.monotonic``
    ident: str = ""  # of its request, in the log


@dataclass(frozen=True)
class ReadResult:
    """What a request has read."""

    readings: list[list[Reading]]  # by question
    wait_seconds: float  # seconds until its first forward


@dataclass(frozen=True)
class Unit:
    """A canvas of one question, and which of its queries read it."""

    group: int  # index of its question
    canvas: ReadCanvas  # what is read
    places: tuple[int, ...]  # indices of the question's queries that read it


@dataclass(eq=False)
class ReadEntry:
    """A read on its way."""

    number: int  # its name
    job: ReadJob  # what is to be read
    deliver: Callable[[ReadResult | JobFailure], None]  # takes what it found, or why it failed
    submit_time: float = field(default_factory=time.monotonic)  # seconds by ``time.monotonic``
    start_time: float | None = None  # of its first forward, seconds by ``time.monotonic``; None: not yet
    alone: bool = False  # a forward that it shared has failed
    todo: deque[Unit] = field(default_factory=deque)  # what is still to be read
    results: dict[tuple[int, int], Reading] = field(default_factory=dict)  # by question and query

    def __post_init__(self) -> None:
        for number, queries in enumerate(self.job.groups):
            places: dict[ReadCanvas, list[int]] = {}
            for place, query in enumerate(queries):
                places.setdefault(query.canvas, []).append(place)
            self.todo += [Unit(number, canvas, tuple(at)) for canvas, at in places.items()]

    def outcome(self) -> ReadResult:
        """All its readings."""
        readings = [
            [self.results[number, place] for place in range(len(queries))]
            for number, queries in enumerate(self.job.groups)
        ]
        return ReadResult(readings, (self.start_time or self.submit_time) - self.submit_time)


class ReadQueue:
    """Belongs to the scheduler, which guards it. share: what each of its jobs has had of the device."""

    def __init__(self, model: Model, limits: Limits, lead: Lead | None = None) -> None:
        self.model, self.exact, self.lead = model, limits.exact, lead
        self.columns, self.share = limits.max_prefill_tokens, DeviceShare()
        self.entries: deque[ReadEntry] = deque()

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, entry: ReadEntry, clock: float) -> None:
        """Queue an entry. clock: the scheduler's."""
        if not self.entries:
            self.share = DeviceShare(clock)
        self.entries.append(entry)

    def drop(self, numbers: set[int]) -> None:
        """Take entries out."""
        self.entries = deque(entry for entry in self.entries if entry.number not in numbers)

    def coming_units(self) -> list[tuple[ReadEntry, Unit]]:
        """What the coming forward reads."""
        units: list[tuple[ReadEntry, Unit]] = []
        widest = 0
        for entry in self.entries:
            if units and (self.exact or entry.alone or units[0][0].alone):
                break
            for unit in entry.todo:
                if units and self.exact and unit.group != units[0][1].group:
                    break
                widest = max(widest, len(unit.canvas.tokens))
                if units and (len(units) + 1) * widest > self.columns:
                    return units
                units.append((entry, unit))
        return units

    def turn(self) -> tuple[list[ReadEntry], list[tuple[ReadEntry, str, UserError | str]]]:
        """Run a forward. Returns the entries that it finished, and those that failed, with kind and sentence."""
        units = self.coming_units()
        entries = list({id(entry): entry for entry, _ in units}.values())
        for entry in entries:
            entry.start_time = entry.start_time or time.monotonic()
        began = time.perf_counter()
        try:
            self._run_forward(units)
        except torch.OutOfMemoryError:
            if self.lead is not None:
                self.lead.agree()
            self.columns = max(len(units) // 2, 1) * max(len(unit.canvas.tokens) for _, unit in units)
            if len(units) > 1:
                return [], []
            return [], [(entries[0], "memory", "a canvas of this decision needs more memory than there is.")]
        except Exception as error:  # of one of them: it must not take its neighbours along
            if self.lead is not None:
                self.lead.agree()
            if len(entries) > 1:
                for entry in entries:
                    entry.alone = True
                return [], []
            why = error if isinstance(error, UserError) else f"reading failed ({type(error).__name__})."
            return [], [(entries[0], "error", why)]
        # Shared by all who wait: were it by those in this forward, eight clients in exact mode would count as one.
        self.share.take((time.perf_counter() - began) / len(self.entries))
        return [entry for entry in entries if not entry.todo], []

    def _run_forward(self, units: Sequence[tuple[ReadEntry, Unit]]) -> None:
        keys = [(entry, unit.group, place) for entry, unit in units for place in unit.places]
        queries = [entry.job.groups[group][place] for entry, group, place in keys]
        if self.lead is not None:
            self.lead.read(queries, len(units))
        counted_entries = set[int]()  # each job counts the calls that it took part in
        readings = read_canvases(self.model, queries, len(units))
        forwards = sum(reading.forwards for reading in readings)
        for (entry, group, place), reading in zip(keys, readings, strict=True):
            entry.results[group, place] = replace(reading, forwards=0 if id(entry) in counted_entries else forwards)
            counted_entries.add(id(entry))
        for entry, _ in units:
            entry.todo.popleft()
