"""What the server and the scheduler exchange: jobs to decode, and the events of their decodes. Plain data, but for the
parts that decode them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dllm.compose.fitted import Parts
from dllm.contract.canvas import Request
from dllm.record.results import Result


@dataclass(frozen=True)
class RequestParts:
    """The parts of one request, built and fitted to the model."""

    parts: Parts  # resolved for the model
    config: Mapping[str, Mapping[str, Any]]  # what they were built from, by group, as a trace file has it
    # equal for requests that may share a batch: all options but the ``per_request`` ones of sampler and blocks, and of
    # the temperature only whether it is 0
    key: Hashable


@dataclass(frozen=True)
class Job:
    """One row to decode. deadline: by ``time.monotonic``. follow: its progress is told, which costs a copy from the
    device in every turn. snapshots: with the model's guesses. ident: of its
    request, in the log."""

    request: Request
    chosen: RequestParts
    deadline: float
    follow: bool = True
    snapshots: bool = False
    trace: bool = False
    ident: str = ""


@dataclass(frozen=True)
class Progress:
    """A row after a turn that changed it.

    turn: its forwards so far. block: index of its block. tokens, masked: its answer (the mask's id where undecided).
    final: so many leading positions of the answer will never change again. Only for ``snapshots``: turns: the forward
    after which each position kept its token, 0 for a mask and what was given; guesses: the model's proposals for masked
    positions and their probabilities.
    """

    turn: int
    block: int
    tokens: list[int]
    masked: list[bool]
    final: int
    turns: list[int] = field(default_factory=list)
    guesses: dict[int, tuple[int, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """A finished row. logprobs: of every token of ``result.canvas`` at its commit (nan: not known). waited: seconds
    from its submission to its first turn. turns: turns of the loop that it was in, idle ones included."""

    result: Result
    logprobs: list[float]
    waited: float
    turns: int


@dataclass(frozen=True)
class Failed:
    """A row that will not finish. kind: ``timeout``, ``forwards``, ``memory``, ``closing`` or ``error``. message: one
    sentence. id: that the log names, too."""

    kind: str
    message: str
    id: str


Event = Progress | Done | Failed


class Full(Exception):  # noqa: N818  a state of the server, no fault
    """As many requests wait as may wait."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} requests wait already. Try again later.")
        self.waiting = waiting


class Closing(Exception):  # noqa: N818
    """The server takes no more requests."""


@dataclass(frozen=True)
class Limits:
    """What may be decoded at once. max_cells: rows times columns, over all lanes. max_opening: columns of the rows that
    join between two turns. max_lanes: running batches of different settings. max_waiting: requests that wait. exact:
    every row has forwards of its own, so that an answer under load is the one alone to the last bit, whatever a device
    rounds in larger batches; they then share nothing but their turns."""

    max_rows: int = 8
    max_cells: int = 16384
    max_opening: int = 4096
    max_lanes: int = 4
    max_waiting: int = 64
    exact: bool = False


@dataclass
class Stats:
    """What a scheduler has done so far, and what it has to do. ended: jobs by how they ended. wanted, computed: rows
    that the caches asked for, and that the network ran, of finished jobs. reads: of decisions, finished."""

    waiting: int = 0
    rows: int = 0
    lanes: int = 0
    cells: int = 0
    turns: int = 0
    turn_seconds: float = 0.0
    forwards: int = 0
    tokens: int = 0
    wanted: int = 0
    computed: int = 0
    reads: int = 0
    read_forwards: int = 0
    read_seconds: float = 0.0
    ended: Counter[str] = field(default_factory=Counter)
