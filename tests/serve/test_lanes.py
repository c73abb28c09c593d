"""Which requests share a running batch: numbers of the sampler and of the blocks belong to each row."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from harness import Combination, full
from recording import FakeGraph

from dllm.compose.parts import part
from dllm.constraints import Regex
from dllm.contract.canvas import Request
from dllm.loop import runner
from dllm.loop.recorded import RecordedTurns
from dllm.models.bundle import Model
from dllm.runtime.runtime import Runtime
from dllm.serve import scheduler as scheduler_module
from dllm.serve.jobs import Done, Limits, RequestParts
from dllm.serve.lane import SettingBatch
from dllm.serve.scheduler import Scheduler
from tests.serve.test_scheduler import Client, alone, bundle, chosen, job, requests


def in_one_lane(todo: Sequence[Request], parts: Sequence[RequestParts], runtime: str) -> list[tuple[list[int], int]]:
    """Canvas and forwards of each request, which join one lane turn by turn."""
    scheduler, clients = Scheduler(bundle("tiny-llada"), runtime), [Client() for _ in todo]
    for one, own, client in zip(todo, parts, clients, strict=True):
        scheduler.submit(job(one, own), client)
        scheduler.step()
        assert len(scheduler.lanes) == 1
    while scheduler.lanes:
        scheduler.step()
    return [(client.last.result.canvas, client.last.result.nfe) for client in clients]


def changed(combination: Combination, **parts: Any) -> RequestParts:
    """What is chosen, with other parts."""
    asked = chosen(combination)
    return replace(asked, parts=replace(asked.parts, **parts))


def test_settings_of_the_sampler_travel_with_the_request() -> None:
    combination = Combination("confidence", "fixed", "dual", "none", "tiny-llada")
    todo = requests(random.Random(5), 4, 60)
    parts = [changed(combination, sampler=part("sampler", "confidence", threshold=threshold))
             for threshold in (0.3, 0.6, 0.05, 0.95)]  # fmt: skip
    expected = [alone(combination, one, own) for one, own in zip(todo, parts, strict=True)]
    assert len({nfe for _, nfe in expected}) > 1
    assert in_one_lane(todo, parts, "eager") == expected


MIXED = [("confidence", "dual", "eager"), ("klass", "prefix", "eager"), ("confidence", "dual", "static")]
MORE = [("static", "none", "eager"), ("ete", "none", "eager"), ("klass", "none", "static"), ("eb", "elastic", "eager")]


@pytest.mark.parametrize(("sampler", "cache", "runtime"), MIXED + MORE * full())
def test_settings_of_the_blocks_travel_with_the_request(sampler: str, cache: str, runtime: str) -> None:
    combination = Combination(sampler, "fixed", cache, "none", "tiny-llada")
    todo = [Request.answer([3, 4, 5 + seed], 24, 60, seed) for seed in range(4)]
    shapes = ((8, 1), (24, 1), (3, 1), (5, 2))
    parts = [changed(combination, blocks=part("blocks", "fixed", block_length=length, min_forwards=least))
             for length, least in shapes]  # fmt: skip
    expected = [alone(combination, one, own) for one, own in zip(todo, parts, strict=True)]
    assert len({nfe for _, nfe in expected}) > 1 or sampler == "static"
    assert in_one_lane(todo, parts, runtime) == expected


def test_every_setting_has_a_lane_and_none_starves() -> None:
    ways = [Combination(name, "fixed", cache, "none", "tiny-llada")
            for name, cache in (("confidence", "dual"), ("static", "none"), ("credit", "prefix"))]  # fmt: skip
    scheduler = Scheduler(bundle("tiny-llada"), "eager", Limits(max_lanes=2))
    clients = [Client() for _ in ways]
    for way, client in zip(ways, clients, strict=True):
        scheduler.submit(job(Request.answer([3, 4], 12, 60), chosen(way)), client)
    scheduler.step()
    assert len(scheduler.lanes) == 2 and len(scheduler.queue) == 1  # the third waits at the head of the queue
    while scheduler.lanes or scheduler.queue:
        scheduler.step()
    assert all(isinstance(client.last, Done) for client in clients)


def test_rows_of_very_different_widths_have_lanes_of_their_own_while_there_are_any() -> None:
    parts = chosen(Combination("static", "fixed", "none", "none", "tiny-llada"))
    for most, expected in ((4, [[2], [1, 3]]), (1, [[1, 2, 3]])):
        scheduler = Scheduler(bundle("tiny-llada"), "eager", Limits(max_lanes=most))
        for length in (12, 300, 100):
            scheduler.submit(job(Request.answer([3, 4], length, 60), parts), Client())
        scheduler.step()
        found = [sorted(entry.number for entry in lane.everyone()) for lane in scheduler.lanes.values()]
        assert sorted(found, reverse=True) == expected


def test_a_short_answer_waits_for_few_turns_of_a_long_one_which_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which a turn takes as many seconds as the lane has columns. Three clients whose short answers never
    end, one after the other in settings of their own, leave the long one its quarter of the device."""
    now, log, took = 0.0, list[int](), SettingBatch.turn

    def turn(lane: SettingBatch) -> Any:
        nonlocal now
        log.append(lane.columns)
        now += lane.columns
        return took(lane)

    monkeypatch.setattr(SettingBatch, "turn", turn)
    monkeypatch.setattr(scheduler_module, "time", SimpleNamespace(perf_counter=lambda: now, monotonic=time.monotonic))
    scheduler = Scheduler(bundle("tiny-llada"), "eager")
    parts = [chosen(Combination(name, "fixed", "none", "none", "tiny-llada")) for name in ("static", "eb", "klass")]
    scheduler.submit(job(Request.answer([3, 4], 300, 60), parts[0]), Client())
    for _ in range(3):
        scheduler.step()
    log.clear()
    scheduler.submit(job(Request.answer([3, 4], 4, 60), parts[0]), short := Client())
    while not short.ended.is_set():
        scheduler.step()
    assert log == [64] * 4  # 320 columns of the other would be five of its own
    clients, began = [Client() for _ in parts], now
    log.clear()
    for _ in range(45):
        for at, client in enumerate(clients):
            if client.ended.is_set() or not log:
                scheduler.submit(job(Request.answer([3, 4], 2, 60), parts[at]), replacement := Client())
                clients[at] = replacement
        scheduler.step()
    long = sum(columns for columns in log if columns > 64)
    assert 0.2 < long / (now - began) < 0.5


@pytest.mark.parametrize("cache", ["dual", *["none"] * full()])
def test_whole_turns_are_replayed_again_when_a_constrained_row_has_left(
    cache: str, written_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the runtime records whole turns, a lane takes plain ones as long as a row of it is under a constraint."""
    parts, mask = chosen(Combination("static", "fixed", cache, "none", "tiny-llada")), written_model.ids.mask
    free = [Request.answer([3, 4, 5 + seed], 32, mask, seed) for seed in range(2)]
    bound = replace(Request.answer([7, 8, 9], 16, mask, 2), constraint=Regex("[ab]{5}-[0-9]{3,9}"))

    def decoded(scheduler: Scheduler, *todo: Request) -> list[tuple[list[int], int]]:
        clients = [Client() for _ in todo]
        for turn in range(60):
            if turn in (0, 3, 11)[: len(todo)]:
                at = (0, 3, 11).index(turn)
                scheduler.submit(job(todo[at], parts), clients[at])
            scheduler.step()
            assert len(scheduler.lanes) < 2
            replays.append((log.count("replay"), any(e.job.request.constraint for lane in scheduler.lanes.values()
                                                     for e in lane.entries.values())))  # fmt: skip
        return [(client.last.result.canvas, client.last.result.nfe) for client in clients]

    log, replays = list[str](), list[tuple[int, bool]]()
    alone = [decoded(Scheduler(written_model, "eager"), one)[0] for one in (free[0], bound, free[1])]
    monkeypatch.setattr(runner, "build_runtime", lambda runtime, model, *_: (
        model, RecordedTurns(model, lambda: FakeGraph(log))))  # fmt: skip
    scheduler = Scheduler(written_model, Runtime("static", lag=1))
    replays.clear()
    assert decoded(scheduler, free[0], bound, free[1]) == alone
    during = [count for count, constrained in replays if constrained]
    assert len(during) > 5 and during[0] == during[-1] < replays[-1][0]
