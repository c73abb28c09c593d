"""What the server and the scheduler exchange: jobs to decode, and the events of their decodes. Plain data, but for the
parts that decode them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from threading import Lock
from typing import Any

from dllm.common.errors import Refusal
from dllm.compose.fitted import Parts
from dllm.contract.canvas import Request
from dllm.loop.prefill import PREFILL_CHUNK
from dllm.record.likeliest import Likeliest
from dllm.record.results import Result


@dataclass(frozen=True)
class RequestParts:
    """The parts of one request, built and fitted to the model."""

    parts: Parts  # resolved for the model
    config: Mapping[str, Mapping[str, Any]]  # what they were built from, by group, as a trace file has it
    # equal for requests that may share a batch: all options but the ``per_request`` ones of sampler, blocks and length,
    # and of the temperature only whether it is 0
    key: Hashable
    recipe: str  # from which ``PartsBuilder.of`` makes equal ones, in another process too


@dataclass(frozen=True)
class Job:
    """One row to decode."""

    request: Request  # the row to decode; a gap of unknown size in it is sized before it joins
    setting: RequestParts  # its parts and sampling
    deadline: float  # by ``time.monotonic``
    follow: bool = True  # report its progress, which costs a copy from the device in every turn
    snapshots: bool = False  # its progress has the model's guesses
    trace: bool = False  # its result has a trace
    likeliest: int = 0  # report this many of the likeliest tokens of each position
    logprobs: bool = False  # report the log-probabilities of its tokens
    ident: str = ""  # of its request, in the log
    tenant: str = ""  # what it computes of its prompt is for requests of the same tenant alone
    grows_to: int = 0  # columns that its row may come to have; 0: it keeps those that it has

    @property
    def columns(self) -> int:
        """Columns that its row has at most."""
        return max(len(self.request.tokens), self.grows_to)


@dataclass(frozen=True)
class Progress:
    """A row after a turn that changed it."""

    turn: int  # its forwards so far
    block: int  # index of its block
    tokens: list[int]  # its answer at its length of the moment, with the mask's id or with noise where it is undecided
    masked: list[bool]  # which positions of the answer are undecided
    final: int  # that many leading positions of the answer will never change again
    # of snapshots: the forward after which each position kept its token; 0: a mask, or given
    turns: list[int] = field(default_factory=list)
    # of snapshots: what the model proposes for masked positions, and its probability
    guesses: dict[int, tuple[int, float]] = field(default_factory=dict)
    # of snapshots: the likeliest token of what a position shows between mask and token, and its share
    mixtures: dict[int, tuple[int, float]] = field(default_factory=dict)
    cached_tokens: int | None = None  # as ``JobResult.cached_tokens``


@dataclass(frozen=True)
class JobResult:
    """A finished row."""

    result: Result  # as Python returns it
    # of every token of ``result.canvas`` at its commit, under the model alone and under what it was drawn from, nats;
    # nan: not known; empty where it was not asked for
    logprobs: list[tuple[float, float]]
    wait_seconds: float  # seconds from its submission to its first turn
    turns: int  # turns of the loop that it was in, idle ones included
    # of every token of ``result.canvas`` those that its forward found likeliest; empty where it was not asked for, and
    # an entry is empty where no forward decided the token
    likeliest: list[Likeliest] = field(default_factory=list)
    cached_tokens: int | None = None  # of its prompt, computed by an earlier request; None: its cache shares none
    request: Request | None = None  # the row with a size for its gap; None: that of the job


@dataclass(frozen=True)
class JobFailure:
    """A row that will not finish."""

    kind: str  # ``timeout``, ``forwards``, ``memory``, ``closing`` or ``error``
    message: str  # one sentence
    id: str  # that the log names, too
    error: Refusal | None = None  # the same as a value, if it is one


Event = Progress | JobResult | JobFailure


class Full(Exception):  # noqa: N818  a state of the server, no fault
    """As many requests wait as may wait."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} requests wait already. Try again later.")
        self.waiting = waiting


class Closing(Exception):  # noqa: N818
    """The server takes no more requests."""


@dataclass(frozen=True)
class Limits:
    """What may be decoded at once."""

    max_rows: int = 8  # of a batch
    max_tokens_in_flight: int = 16384  # rows times columns, over all lanes
    max_prefill_tokens: int = 4096  # columns of the rows that join between two turns
    prefill_chunk: int = PREFILL_CHUNK  # columns of a prompt that are computed between two turns (causal models)
    max_lanes: int = 4  # running batches of different settings
    max_waiting: int = 64  # requests that wait
    prefix_gib: float = 1.0  # GiB of keys and values that later requests may take over; 0: none
    # every row has forwards of its own, so that an answer under load is the one alone to the last bit, whatever a
    # device rounds in larger batches; they then share nothing but their turns
    exact: bool = False


@dataclass
class DeviceShare:
    """What a job has had of the device, for turns that are fair."""

    had: float = 0.0  # seconds; at the start what others had by then
    last: float = 0.0  # seconds of its last turn; the coming one will take as many

    @property
    def due(self) -> float:
        """Seconds of the device that it will have had after its coming turn."""
        return self.had + self.last

    def take(self, seconds: float) -> None:
        """Note a turn."""
        self.had, self.last = self.had + seconds, seconds


@dataclass
class Stats:
    """What a scheduler has done so far, and what it has to do."""

    waiting: int = 0  # jobs in the queue
    rows: int = 0  # rows being decoded
    lanes: int = 0  # running batches
    tokens_in_flight: int = 0  # rows times columns of all lanes
    turns: int = 0  # turns of all lanes so far
    turn_seconds: float = 0.0  # that they took
    forwards: int = 0  # of finished jobs
    tokens: int = 0  # of finished answers
    query_tokens: int = 0  # query tokens that the caches of finished jobs asked for
    computed_tokens: int = 0  # query tokens that the network ran for them
    cached_tokens: int = 0  # tokens of their prompts that earlier requests had computed
    prefix_columns: int = 0  # columns whose keys and values later requests may take over
    prefix_evicted: int = 0  # pages of such columns that made room for others
    reads: int = 0  # of decisions, finished
    read_forwards: int = 0  # forwards that decisions took
    read_seconds: float = 0.0  # seconds that decisions took
    endings: Counter[str] = field(default_factory=Counter)  # jobs by how they ended


@dataclass
class Update:
    """What has come for one row since it was last asked for."""

    latest: Progress | None = None  # its newest state, which holds all that the ones before it held
    # turn and final prefix wherever that grew, so that a late reader learns what an early one would have known
    growth: list[tuple[int, int]] = field(default_factory=list)
    end: JobResult | JobFailure | None = None  # how it ended


class Mailbox:
    """One slot for each of ``count`` rows, and one reader on the running event loop. A slot is as large as its row's
    answer, however slow the reader is: newer states replace older ones."""

    def __init__(self, count: int) -> None:
        self._loop, self._ready, self._lock = asyncio.get_running_loop(), asyncio.Event(), Lock()
        self._slots = [Update() for _ in range(count)]
        self._final = [-1] * count

    def slot(self, row: int) -> Callable[[Event], None]:
        """Where the decode thread delivers the events of a row. It never waits."""
        return partial(self._put, row)

    def _put(self, row: int, event: Event) -> None:
        with self._lock:
            mail = self._slots[row]
            if isinstance(event, Progress):
                mail.latest = event
                if event.final > self._final[row]:
                    self._final[row] = event.final
                    mail.growth.append((event.turn, event.final))
            else:
                mail.end = event
        with suppress(RuntimeError):  # the event loop has gone, and with it the reader
            self._loop.call_soon_threadsafe(self._ready.set)

    async def some(self, seconds: float) -> None:
        """Waits for mail, and leaves it. Raises TimeoutError after that many seconds."""
        if not self._ready.is_set():
            async with asyncio.timeout(seconds):
                await self._ready.wait()

    def failures(self) -> list[JobFailure]:
        """Those of the mail that is there."""
        with self._lock:
            return [mail.end for mail in self._slots if isinstance(mail.end, JobFailure)]

    async def take(self, seconds: float) -> list[tuple[int, Update]]:
        """Waits for mail, and empties the slots. Raises TimeoutError as ``some``."""
        await self.some(seconds)
        self._ready.clear()
        with self._lock:
            mails = [(row, mail) for row, mail in enumerate(self._slots) if mail.latest or mail.end]
            for row, _ in mails:
                self._slots[row] = Update()
        return mails


LONGEST_WAIT = 60  # seconds; OpenAI's clients take no longer ones
FIRST_GUESS = 0.1  # seconds that an answer takes, as long as none has ended
MOST_RETURNS = 4096  # clients that are distinguished
SLACK = 1.25  # the queue must be empty by then, not about to be


class RetryTimes:
    """Gives each refused client a time of its own: after those that wait, and after those that were told to come back
    before. A crowd then returns one by one, not all at once to be refused again."""

    def __init__(self) -> None:
        self.returns: deque[float] = deque(maxlen=MOST_RETURNS)  # when clients come back, by ``time.monotonic``

    def next(self, figures: Stats) -> int:
        """Whole seconds, from 1 to ``LONGEST_WAIT``."""
        now = time.monotonic()
        self.returns = deque((until for until in self.returns if until > now), MOST_RETURNS)
        each = (figures.turn_seconds + FIRST_GUESS) / (figures.endings["done"] + 1)
        ahead = figures.waiting + figures.rows + len(self.returns)
        seconds = min(LONGEST_WAIT, max(1, ceil(ahead * each * SLACK)))
        self.returns.append(now + seconds)
        return seconds
