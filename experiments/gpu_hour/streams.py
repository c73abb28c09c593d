"""The cells of ``streams``: the server's scheduler with real prompts, as many at a time as there are streams. HTTP is
left out: it is another process's work."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

from dllm.common.errors import UserError
from dllm.contract.canvas import Request
from dllm.record.measures import quantile
from dllm.serve.engine.jobs import Event, Job, JobFailure, JobResult, Limits, RequestParts
from dllm.serve.engine.scheduler import Scheduler
from experiments.bench.step import named
from experiments.gpu_hour.cells import Cell, check
from experiments.gpu_hour.texts import prompts
from experiments.gpu_hour.timed import Models

EACH = 4  # requests of a stream; the first is not counted


def served(cell: Cell, models: Models) -> dict[str, Any]:
    """Text tokens a second over all streams (``batch`` of the cell), and the latency of an answer."""
    model, runtime = models.text(cell), check(cell, models.device)
    parts = replace(cell.parts, eos=named("eos", "stop_at_eos"))
    limits = Limits(max_rows=cell.batch, max_tokens_in_flight=1 << 20, max_waiting=1 << 10)
    streams = Streams(Scheduler(model, runtime, limits), RequestParts(parts, {}, "streams", ""))
    for number, prompt in enumerate(prompts(model, EACH * cell.batch)):
        streams.left.append(Request.answer(prompt, cell.answer, model.ids.placeholder, number))
    return {**vars(cell), **streams.run(cell.batch)}


class Streams:
    """Clients of a scheduler, who ask again when they have their answers."""

    def __init__(self, scheduler: Scheduler, parts: RequestParts) -> None:
        self.scheduler, self.parts = scheduler, parts
        self.left: list[Request] = []
        self.ended: list[
            tuple[float, float, int]
        ] = []  # of each answer: when it was asked for and ended, and its tokens
        self.failed: list[str] = []
        self.open, self.all = 0, threading.Event()
        self.lock = threading.Lock()

    def run(self, count: int) -> dict[str, Any]:
        """Figures of the requests after the first of each stream. Raises UserError for one that failed."""
        self.scheduler.start()
        for _ in range(count):
            self.ask()
        self.all.wait()
        self.scheduler.close(0.0)
        if self.failed:
            raise UserError(self.failed[0])
        timed = sorted(self.ended)[count:]
        begin, end = min(one[0] for one in timed), max(one[1] for one in timed)
        waits = [ended - asked for asked, ended, _ in timed]
        return {
            "tokens_per_s": sum(one[2] for one in timed) / (end - begin),
            "requests_per_s": len(timed) / (end - begin),
            "p50_s": quantile(waits, 0.5),
            "p95_s": quantile(waits, 0.95),
        }

    def ask(self) -> None:
        """Submit the next request, if there is one."""
        with self.lock:
            if not self.left:
                if not self.open:
                    self.all.set()
                return
            request, self.open = self.left.pop(0), self.open + 1
        asked = time.perf_counter()
        self.scheduler.submit(Job(request, self.parts, time.monotonic() + 600), lambda event: self.told(asked, event))

    def told(self, asked: float, event: Event) -> None:
        if isinstance(event, JobResult | JobFailure):
            with self.lock:
                self.open -= 1
                if isinstance(event, JobResult):
                    self.ended.append((asked, time.perf_counter(), len(event.result.tokens)))
                else:
                    self.failed.append(event.message)
            self.ask()
