"""Scores that need processes of their own: a pool of threads awaits them while the next samples are decoded."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from dllm.record.results import ResultRow
from dllm.tasks.base import Task

FinishedSample = tuple[ResultRow, dict[str, Any] | None]  # a row of results, and its trace
Judgement = dict[str, Any]  # keys of a row: its scores, and its parts of metrics over all answers
MAX_PROGRAMS = 8  # programs at a time; each may take 2 GiB
MAX_WAITING = 4  # samples that may wait for a scorer: what a killed run decodes again


def scorers(task: Task, device: torch.device) -> int:
    """How many answers are scored at a time beside the decode; 0: each one before the decode goes on.

    A GPU would wait for every program, so its host's other cores run them. A CPU would not decode sooner, and its times
    would be those of a busy machine.
    """
    return 0 if device.type == "cpu" or not task.apart else max(1, min(MAX_PROGRAMS, (os.cpu_count() or 1) - 1))


def scored(
    samples: Iterable[FinishedSample], score: Callable[[ResultRow], Judgement], workers: int
) -> Iterator[FinishedSample]:
    """The samples with what scoring adds to their rows, in the same order; ``workers`` as of ``scorers``."""
    if not workers:
        yield from (({**row, **score(row)}, trace) for row, trace in samples)
        return
    waiting: deque[tuple[Future[Judgement], ResultRow, dict[str, Any] | None]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for row, trace in samples:
            waiting.append((pool.submit(score, row), row, trace))
            while waiting and (waiting[0][0].done() or len(waiting) > MAX_WAITING * workers):
                yield with_scores(*waiting.popleft())
        while waiting:
            yield with_scores(*waiting.popleft())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def with_scores(score: Future[Judgement], row: ResultRow, trace: dict[str, Any] | None) -> FinishedSample:
    return {**row, **score.result()}, trace
