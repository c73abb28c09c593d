"""Scores that take processes of their own, awaited while the next samples are decoded."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from dllm.app.jobs.store import Row
from dllm.tasks.base import Scores, Task

Sample = tuple[Row, dict[str, Any] | None]  # a row of results, and its trace
MOST = 8  # programs at a time; each may take 2 GiB
AHEAD = 4  # samples that may wait for a scorer: what a killed run decodes again


def scorers(task: Task, device: torch.device) -> int:
    """How many answers are scored at a time beside the decode; 0: each at once, before the next turn.

    A GPU would wait for every program, so its host's other cores run them. A CPU would decode no sooner, and its times
    would be those of a busy machine.
    """
    return 0 if device.type == "cpu" or not task.apart else max(1, min(MOST, (os.cpu_count() or 1) - 1))


def scored(samples: Iterable[Sample], score: Callable[[Row], Scores], workers: int) -> Iterator[Sample]:
    """The samples with their ``scores``, in the same order; ``workers`` as of ``scorers``."""
    if not workers:
        yield from (({**row, "scores": score(row)}, trace) for row, trace in samples)
        return
    waiting: deque[tuple[Future[Scores], Row, dict[str, Any] | None]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for row, trace in samples:
            waiting.append((pool.submit(score, row), row, trace))
            while waiting and (waiting[0][0].done() or len(waiting) > AHEAD * workers):
                yield settled(*waiting.popleft())
        while waiting:
            yield settled(*waiting.popleft())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def settled(score: Future[Scores], row: Row, trace: dict[str, Any] | None) -> Sample:
    return {**row, "scores": score.result()}, trace
