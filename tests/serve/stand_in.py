"""A scheduler that decodes one row after the other by ``Decoder``, for tests of what lies above it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from math import nan
from typing import Any

from dllm import Decoder
from dllm.parts import (
    Closing,
    Event,
    Full,
    Job,
    JobFailure,
    JobResult,
    Limits,
    Model,
    Progress,
    RequestParts,
    Runner,
    Runtime,
    Stats,
    Turn,
)

Deliver = Callable[[Event], None]


class Left(Exception):
    """The row was aborted."""


class OneByOne:
    """pause: seconds that a turn takes at least. script: events in place of a decode."""

    lead: None = None  # one process

    @property
    def health(self) -> str:
        return self.state

    def __init__(self, model: Model, limits: Limits | None = None, pause: float = 0.0) -> None:
        self.model, self.limits, self.pause = model, limits or Limits(), pause
        self.script: Callable[[Job, Deliver], None] | None = None
        self.waiting: deque[tuple[int, Job, Deliver]] = deque()
        self.running: set[int] = set()
        self.gone: set[int] = set()
        self.count, self.turns, self.state = 0, 0, "ready"
        self.condition = threading.Condition()
        self.thread: threading.Thread | None = None

    def runner_of(self, chosen: RequestParts) -> Runner:
        return Runner.of(self.model, chosen.parts, Runtime("eager"))

    def start(self) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self.work, daemon=True)
            self.thread.start()

    def submit(self, job: Job, deliver: Deliver) -> int:
        with self.condition:
            if self.state != "ready":
                raise Closing
            if len(self.waiting) >= self.limits.max_waiting:
                raise Full(len(self.waiting))
            self.count += 1
            self.waiting.append((self.count, job, deliver))
            self.condition.notify()
            return self.count

    def abort(self, number: int) -> None:
        with self.condition:
            self.gone.add(number)
            self.waiting = deque(entry for entry in self.waiting if entry[0] != number)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def close(self, grace: float, waiting: bool = True) -> None:
        self.state = "closing"
        until = time.monotonic() + grace
        while self.busy and time.monotonic() < until:
            time.sleep(0.01)
        with self.condition:
            left, self.waiting = list(self.waiting), deque()
            self.state = "closed"
            self.condition.notify()
        for _, _, deliver in left:
            deliver(JobFailure("closing", "the server shuts down.", "none"))

    def figures(self) -> Stats:
        return Stats(rows=len(self.running), waiting=len(self.waiting), turns=self.turns)

    def work(self) -> None:
        while True:
            with self.condition:
                self.condition.wait_for(lambda: self.waiting or self.state == "closed")
                if self.state == "closed":
                    return
                number, job, deliver = self.waiting.popleft()
                self.running.add(number)
            try:
                (self.script or self.decode)(job, lambda event, n=number, d=deliver: self.tell(n, d, event))
            except Left:
                pass
            except Exception as error:
                deliver(JobFailure("error", f"the decode failed ({type(error).__name__}).", "feed"))
            self.running.discard(number)

    def tell(self, number: int, deliver: Deliver, event: Event) -> None:
        if number in self.gone:
            raise Left
        deliver(event)

    def decode(self, job: Job, deliver: Deliver) -> None:
        parts = job.setting.parts
        decoder = Decoder(
            self.model,
            parts.sampler,
            parts.blocks,
            parts.cache,
            parts.eos,
            sampling=parts.sampling,
            gen_length=max(1, list(job.request.masked).count(True)),
        )

        def observe(turn: Turn) -> None:
            time.sleep(self.pause)
            self.turns += 1
            if not turn.finished and job.follow:  # of the last turn only the end is told, as by the real one
                deliver(progress_of(turn, job))
            if time.monotonic() > job.deadline:
                deliver(JobFailure("timeout", "the request took too long.", "late"))
                raise Left

        ((_, result),) = decoder.run([replace(job.request, param_index=0)], job.trace, observe)
        deliver(JobResult(result, [(-0.5, -0.5)] + [(nan, nan)] * (len(result.canvas) - 1), 0.0, result.nfe))


def progress_of(turn: Turn, job: Job) -> Progress:
    canvas = turn.candidates
    answer = slice(int(canvas.start[0]), int(canvas.initial_end[0]))
    masked: list[Any] = canvas.masked[0, answer].tolist()
    known = turn.view.scores.scored[0, answer].tolist()
    guess, sure = (t[0, answer].tolist() for t in (turn.view.scores.token, turn.view.scores.confidence))
    guesses = {at: (guess[at], sure[at]) for at, hidden in enumerate(masked) if hidden and known[at]}
    turns = turn.ledger.commit_turn.masked_fill(canvas.masked, 0)[0, answer].tolist()
    return Progress(
        int(turn.view.blocks.turn[0]),
        int(turn.view.blocks.index[0]),
        canvas.tokens[0, answer].tolist(),
        masked,
        masked.index(True) if True in masked else len(masked),
        *((turns, guesses) if job.snapshots else ()),
    )
