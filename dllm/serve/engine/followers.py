"""A server whose model several ranks hold: rank 0 decides who joins and who leaves, and its followers take its turns.

All that depends on time or on clients is decided by rank 0's scheduler: whose turn it is, deadlines, what has been
dropped. It sends an order before each turn. The turn itself is the same on every rank, with the rows that end in it.
A follower compiles a constraint when its row joins, which rank 0 has done before, and the turn waits for that.

Orders are plain data. A follower builds the parts of a row by its recipe, as rank 0 has built them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from queue import Empty
from typing import Any

from dllm.common.links import Links
from dllm.compose.parts import part_of
from dllm.constraints.kinds import Constraint
from dllm.contract.canvas import Request
from dllm.loop.runner import Runner
from dllm.loop.runtime.runtime import Runtime
from dllm.models.bundle import Model
from dllm.prompts import Prompts
from dllm.scoring.decisions.reading import ReadCanvas, ReadQuery, read_canvases
from dllm.serve.dialects.request_parts import Defaults, PartsBuilder
from dllm.serve.engine.jobs import Job, RequestParts
from dllm.serve.engine.lane import Entry, SettingBatch

AGREES = 10.0  # seconds in which a failed turn must have failed on every rank


class RankDivergence(Exception):  # noqa: N818  the server ends
    """A turn has failed on some ranks and not on others, so their next exchange would not fit."""


@dataclass(frozen=True)
class LaneOpening:
    """How a lane begins."""

    runner: int  # the runner's number, by which later lanes have the same one, with what it recorded
    recipe: str  # of what the runner is made of, if it is new
    kind: tuple[bool, bool, bool]  # whether its rows have traces, log-probabilities, and likeliest tokens


@dataclass(frozen=True)
class TurnOrder:
    """A turn of a lane."""

    number: int  # of the order
    lane: int  # whose turn it is
    opening: LaneOpening | None  # where the lane is new
    joins: Sequence[tuple[int, Mapping[str, Any]]]  # jobs that join, with their numbers, as ``job_data`` says them
    leaves: Sequence[int]  # numbers of the jobs whose rows leave
    lanes: Sequence[int]  # lanes that followers keep
    runners: Sequence[int]  # runners that followers keep


@dataclass(frozen=True)
class ReadOrder:
    """A forward of reads."""

    number: int  # of the order
    queries: Sequence[Any]  # what is read, as ``query_data`` says it
    canvases: int  # how many canvases a forward takes


def read_order(message: Sequence[Any]) -> TurnOrder | ReadOrder:
    """An order as a message says it."""
    kind, data = message
    if kind == "read":
        return ReadOrder(**data)
    opening = data["opening"]
    return TurnOrder(**{**data, "opening": None if opening is None else LaneOpening(**opening)})


def job_data(job: Job) -> dict[str, Any]:
    """A job as plain data, its parts by their recipe. Clocks differ between processes, so it has no deadline."""
    constraint = job.request.constraint
    assert constraint is None or isinstance(constraint, Constraint)
    request = {**vars(job.request), "constraint": None if constraint is None else constraint.to_json()}
    return {**vars(job), "deadline": 0.0, "setting": job.setting.recipe, "request": request}


def job_of(data: Mapping[str, Any], setting: RequestParts) -> Job:
    """The job that ``job_data`` describes. setting: what its recipe makes."""
    request = data["request"]
    constraint = None if request["constraint"] is None else part_of("constraint", request["constraint"])
    probes = tuple((size, p) for size, p in request["probes"])
    return Job(
        **{**data, "setting": setting, "request": Request(**{**request, "constraint": constraint, "probes": probes})}
    )


def query_data(query: ReadQuery) -> list[Any]:
    """A query as plain data."""
    return [query.canvas.tokens, sorted(query.canvas.masked), query.canvas.start, query.targets]


def query_of(data: Sequence[Any]) -> ReadQuery:
    """The query that ``query_data`` describes."""
    tokens, masked, start, pairs = data
    canvas = ReadCanvas(tuple(tokens), frozenset(masked), start)
    return ReadQuery(canvas, tuple((column, tuple(ids)) for column, ids in pairs))


class Lead:
    """Rank 0's orders. For the scheduler's thread."""

    def __init__(self, links: Links) -> None:
        self.links, self.number = links, 0
        self.lane_numbers: set[int] = set()  # lanes that followers have
        self.runners: dict[int, Runner] = {}  # those that followers have, by number
        self.runner_count = 0  # runners so far

    def turn(self, lane: SettingBatch, lanes: Iterable[SettingBatch], runners: Iterable[Runner]) -> None:
        """Order the coming turn of a lane. lanes, runners: all that there are."""
        open_lanes, alive = tuple(lanes), [*runners, *(each.base_runner for each in lanes)]
        self.runners = {number: each for number, each in self.runners.items() if any(each is other for other in alive)}
        opening = None
        if lane.number not in self.lane_numbers:
            kind = lane.trace, lane.logprobs, lane.offers
            opening = LaneOpening(self._number_of(lane.base_runner), lane.waiting[0].job.setting.recipe, kind)
        self.lane_numbers = (self.lane_numbers & {each.number for each in open_lanes}) | {lane.number}
        joins = [(entry.number, job_data(entry.job)) for entry in lane.waiting]
        order = TurnOrder(
            self._next(),
            lane.number,
            opening,
            joins,
            tuple(lane.aborted_numbers),
            tuple(self.lane_numbers),
            tuple(self.runners),
        )
        self.links.tell("turn", asdict(order))

    def read(self, queries: Sequence[ReadQuery], canvases: int) -> None:
        """Order a forward of reads."""
        self.links.tell("read", asdict(ReadOrder(self._next(), [*map(query_data, queries)], canvases)))

    def agree(self) -> None:
        """Called where the last order has failed here. Raises RankDivergence unless it has failed on every rank."""
        for _ in self.links.links:
            try:
                _, kind, number = self.links.hear(AGREES)
            except Empty:
                raise RankDivergence("a turn failed on rank 0 alone") from None
            assert (kind, number) == ("raised", self.number), "followers obey in order"
        self.links.tell("agreed", self.number)

    def stop(self) -> None:
        """Let the followers end."""
        self.links.tell("stop")

    def _next(self) -> int:
        if not self.links.inbox.empty():
            raise RankDivergence("a turn failed on a follower alone")
        self.number += 1
        return self.number

    def _number_of(self, runner: Runner) -> int:
        for number, other in self.runners.items():
            if other is runner:
                return number
        self.runner_count += 1
        self.runners[self.runner_count] = runner
        return self.runner_count


class Follower:
    """The lanes of a follower."""

    def __init__(self, model: Model, runtime: Runtime) -> None:
        self.model, self.runtime = model, runtime
        self.prompts = Prompts(model.config, model.tokenizer, model.ids, model.name, 1)
        self.parts = PartsBuilder(Defaults(model, model.name, {}, {}, {}, {}))
        self.lanes: dict[int, SettingBatch] = {}
        self.runners: dict[int, Runner] = {}

    def setting_of(self, recipe: str) -> RequestParts:
        """The parts of a recipe."""
        return self.parts.of(recipe)

    def obey(self, order: TurnOrder | ReadOrder) -> None:
        """Do what rank 0 does. Raises what fails there, too."""
        if isinstance(order, ReadOrder):
            read_canvases(self.model, [*map(query_of, order.queries)], order.canvases)
            return
        self.lanes = {number: lane for number, lane in self.lanes.items() if number in order.lanes}
        if order.opening is not None:
            self.lanes[order.lane] = self._open(order.opening)
        self.runners = {number: runner for number, runner in self.runners.items() if number in order.runners}
        lane = self.lanes[order.lane]
        for number in order.leaves:
            lane.drop(number)
        for number, data in order.joins:
            lane.add(Entry(number, job_of(data, self.setting_of(data["setting"])), lambda event: None))  # no clients
        turn = lane.turn()
        for entry in [] if turn is None else lane.finish(turn):
            lane.collector.forget(entry.number)

    def _open(self, opening: LaneOpening) -> SettingBatch:
        if opening.runner not in self.runners:
            self.runners[opening.runner] = Runner.of(self.model, self.setting_of(opening.recipe).parts, self.runtime)
        return SettingBatch(self.runners[opening.runner], self.prompts, *opening.kind)


def follow(model: Model, runtime: Runtime, links: Links) -> None:
    """Obey rank 0 until it stops. Raises what has failed here alone."""
    follower = Follower(model, runtime)
    while (message := links.hear())[0] != "stop":
        order = read_order(message)
        try:
            follower.obey(order)
        except Exception:  # of a part or a prompt: rank 0 begins the rows again in new lanes
            links.tell("raised", order.number)
            if not _agrees(links, order.number):
                raise


def _agrees(links: Links, number: int) -> bool:
    try:
        return links.hear(AGREES) == ("agreed", number)
    except Empty:
        return False
