"""Compiles the constraints of requests beside the decode thread, and looks whether a text of them fits the canvas.

A stranger's schema may take all the seconds that it has. So there are two threads: one gives each constraint a moment,
in which nearly all are compiled, the other gives those that need more their full time, one after the other. What is at
hand already waits for neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from dllm.constraints.kinds import Constraint
from dllm.constraints.languages.limits import TooSlow
from dllm.contract.canvas import Request
from dllm.loop.runner import Runner
from dllm.serve.engine.jobs import Full, Job, RequestParts

MOMENT = 0.5  # seconds of a thread; 95 of 100 schemas that people write take less
MAX_LONG = 4  # constraints that wait for their full time
_T = TypeVar("_T")


class Compiling:
    """runner_of: of a request's parts. seconds: of a thread, that a constraint may take. most: constraints that wait
    for their moment. All but ``compiled`` may be called from any thread."""

    def __init__(self, runner_of: Callable[[RequestParts], Runner], seconds: float, most: int) -> None:
        self.runner_of, self.seconds = runner_of, seconds
        self.brief, self.long = SingleThread("compile", most), SingleThread("compile-long", MAX_LONG)

    async def compiled(self, job: Job) -> object:
        """The language of a job's constraint, at hand as long as the caller holds it. Raises UserError for one that
        cannot be compiled, or that has no text that fits the job's canvas, and Full."""
        try:
            return await self.brief.run(partial(self.compile, job, min(MOMENT, self.seconds)))
        except TooSlow:
            if self.seconds <= MOMENT:
                raise
        return await self.long.run(partial(self.compile, job, self.seconds))

    def at_hand(self, job: Job) -> object | None:
        """The same at once if it is compiled already, else None. Raises UserError as ``compiled``."""
        constraint = job.request.constraint
        assert isinstance(constraint, Constraint)
        is_compiled = self.runner_of(job.setting).constraints.knows(constraint)
        return self.compile(job, self.seconds) if is_compiled else None

    def compile(self, job: Job, seconds: float) -> object:
        """The language, compiled in that many seconds of this thread. Raises UserError."""
        request: Request = job.setting.parts.sampler.prepare(job.request)
        assert isinstance(request.constraint, Constraint)
        request = replace(request, constraint=replace(request.constraint, seconds=seconds))
        row = self.runner_of(job.setting).constraints.row(request)
        assert row is not None, "the request is under a constraint"
        return row.compiled.language

    def close(self) -> None:
        """Begin nothing more."""
        for queue in (self.brief, self.long):
            queue.threads.shutdown(wait=False, cancel_futures=True)


class SingleThread:
    """One thread, and at most that many that wait for it."""

    def __init__(self, name: str, most: int) -> None:
        self.threads, self.most, self.waiting = ThreadPoolExecutor(1, thread_name_prefix=name), most, 0

    async def run(self, act: Callable[[], _T]) -> _T:
        """What ``act`` returns. Raises Full. If the caller is cancelled, what has not begun never does."""
        if self.waiting > self.most:
            raise Full(self.waiting)
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, act)
        finally:
            self.waiting -= 1
