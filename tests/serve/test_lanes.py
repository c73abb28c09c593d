"""Which requests share a running batch: numbers of the sampler and of the blocks belong to each row."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import Combination, full
from recording import FakeGraph

from dllm.loop import runner
from dllm.parts import (
    Full,
    JobFailure,
    JobResult,
    Limits,
    Model,
    ReadCanvas,
    Reading,
    ReadJob,
    ReadQuery,
    ReadResult,
    RecordedTurns,
    Regex,
    Request,
    RequestParts,
    Runtime,
    Scheduler,
    SettingBatch,
    UserError,
    part,
    read_canvases,
)
from dllm.serve.engine import reads as reads_module
from dllm.serve.engine import scheduler as scheduler_module
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
    parts = [
        changed(combination, sampler=part("sampler", "confidence", threshold=threshold))
        for threshold in (0.3, 0.6, 0.05, 0.95)
    ]
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
    parts = [
        changed(combination, blocks=part("blocks", "fixed", block_length=length, min_forwards=least))
        for length, least in shapes
    ]
    expected = [alone(combination, one, own) for one, own in zip(todo, parts, strict=True)]
    assert len({nfe for _, nfe in expected}) > 1 or sampler == "static"
    assert in_one_lane(todo, parts, runtime) == expected


def test_every_setting_has_a_lane_and_none_starves() -> None:
    ways = [
        Combination(name, "fixed", cache, "none", "tiny-llada")
        for name, cache in (("confidence", "dual"), ("static", "none"), ("credit", "prefix"))
    ]
    scheduler = Scheduler(bundle("tiny-llada"), "eager", Limits(max_lanes=2))
    clients = [Client() for _ in ways]
    for way, client in zip(ways, clients, strict=True):
        scheduler.submit(job(Request.answer([3, 4], 12, 60), chosen(way)), client)
    scheduler.step()
    assert len(scheduler.lanes) == 2 and len(scheduler.queue) == 1  # the third waits at the head of the queue
    while scheduler.lanes or scheduler.queue:
        scheduler.step()
    assert all(isinstance(client.last, JobResult) for client in clients)


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


def test_a_request_for_many_answers_shuts_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which a turn takes as many seconds as it has columns. A request has taken every row; the next gets
    one beside it, and as much of the device as the other's rows together."""
    now, took = 0.0, SettingBatch.turn

    def turn(lane: SettingBatch) -> Any:
        nonlocal now
        now += lane.columns * len(lane)
        return took(lane)

    monkeypatch.setattr(SettingBatch, "turn", turn)
    monkeypatch.setattr(scheduler_module, "time", SimpleNamespace(perf_counter=lambda: now, monotonic=time.monotonic))
    scheduler = Scheduler(bundle("tiny-llada"), "eager", Limits(max_rows=4))
    parts = [chosen(Combination(name, "fixed", "none", "none", "tiny-llada")) for name in ("static", "eb")]
    many = replace(job(Request.answer([3, 4], 100, 60), parts[0]), ident="many")
    for _ in range(4):
        scheduler.submit(many, Client())
    for _ in range(3):
        scheduler.step()
    scheduler.submit(replace(job(Request.answer([3, 4], 20, 60), parts[1]), ident="one"), short := Client())
    scheduler.submit(replace(many, ident="more"), Client())
    began = now
    while not short.ended.is_set():
        scheduler.step()
        assert sum(map(len, scheduler.lanes.values())) <= 5
    assert now - began <= 20 * 64 + 4 * 128  # its own turns, and one of the others


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
            replays.append(
                (
                    log.count("replay"),
                    any(e.job.request.constraint for lane in scheduler.lanes.values() for e in lane.entries.values()),
                )
            )
        return [(client.last.result.canvas, client.last.result.nfe) for client in clients]

    log, replays = list[str](), list[tuple[int, bool]]()
    alone = [decoded(Scheduler(written_model, "eager"), one)[0] for one in (free[0], bound, free[1])]
    monkeypatch.setattr(
        runner, "build_runtime", lambda runtime, model, *_: (model, RecordedTurns(model, lambda: FakeGraph(log)))
    )
    scheduler = Scheduler(written_model, Runtime("static", lag=1))
    replays.clear()
    assert decoded(scheduler, free[0], bound, free[1]) == alone
    during = [count for count, constrained in replays if constrained]
    assert len(during) > 5 and during[0] == during[-1] < replays[-1][0]


PARTS = Combination("order", "whole")
COLUMNS = 64  # of a forward of reads


def read_job(number: int, questions: int, mask: int) -> ReadJob:
    """Questions of two canvases each, of 12 to 20 columns; ``number`` tells the jobs' prompts apart."""
    groups = []
    for question in range(questions):
        prompt = (5 + number, *range(7, 17 + question % 9))
        canvases = [
            ReadCanvas((*prompt, *begin, mask), frozenset({len(prompt) + len(begin)}), len(prompt))
            for begin in ((), (9,))
        ]
        groups.append([ReadQuery(one, ((len(one.tokens) - 1, (5, 6, 7)),)) for one in canvases])
    return ReadJob(groups, time.monotonic() + 60)


class Told:
    """What the client of a read was told."""

    def __init__(self) -> None:
        self.events: list[ReadResult | JobFailure] = []

    def __call__(self, event: ReadResult | JobFailure) -> None:
        self.events.append(event)


@pytest.mark.parametrize("exact", [False, True])
def test_reads_are_bounded_and_take_turns_with_decodes(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bundle("tiny-llada")
    scheduler = Scheduler(model, "eager", Limits(max_prefill_tokens=COLUMNS, exact=exact))
    mask, order, widths = model.ids.placeholder, list[str](), list[int]()

    def counted(*arguments: Any, **options: Any) -> list[Reading]:
        canvases = {query.canvas for query in arguments[1]}
        widths.append(len(canvases) * max(len(one.tokens) for one in canvases))
        return read_canvases(*arguments, **options)

    def noted(kind: str, act: Any) -> Any:
        def run(*arguments: Any) -> Any:
            own = scheduler.reads.share if kind == "read" else arguments[1].share
            others = [lane.share.due for lane in scheduler.lanes.values()]
            others += [scheduler.reads.share.due] * bool(scheduler.reads)
            assert own.due == min(others), "next is what will have had the least of the device"
            order.append(kind)
            return act(*arguments)

        return run

    monkeypatch.setattr(reads_module, "read_canvases", counted)
    monkeypatch.setattr(scheduler, "_run_read", noted("read", scheduler._run_read))
    monkeypatch.setattr(scheduler, "_turn", noted("turn", scheduler._turn))
    decodes, readers = [Client() for _ in range(3)], [Told() for _ in range(2)]
    for seed, client in enumerate(decodes):
        scheduler.submit(job(Request.answer([5, 6, 7], 24, mask, seed), chosen(PARTS)), client)
    jobs = [read_job(number, 40, mask) for number in range(2)]
    for one, reader in zip(jobs, readers, strict=True):
        scheduler.submit_read(one, reader)
    while scheduler.reads or scheduler.lanes or scheduler.queue:
        scheduler.step()
    assert max(widths) <= COLUMNS
    reading = order[order.index("read") : len(order) - order[::-1].index("read")]
    assert "turn" in reading and all(client.ended.is_set() for client in decodes), "neither waits for the other's end"
    for one, reader in zip(jobs, readers, strict=True):
        (found,) = reader.events
        assert isinstance(found, ReadResult)
        for queries, readings in zip(one.groups, found.readings, strict=True):
            alone = read_canvases(model, queries)
            for query, reading_, expected in zip(queries, readings, alone, strict=True):
                assert len(reading_.log_p) == len(query.targets)
                assert reading_.log_p[0] == pytest.approx(expected.log_p[0], abs=1e-12)


def test_readers_of_one_prompt_share_its_beginning_on_a_causal_model() -> None:
    """Two clients who ask about one prompt: it is computed once, and each is told what it need not pay for."""
    model = bundle("tiny-nbdiff")
    scheduler = Scheduler(model, "eager", Limits(max_prefill_tokens=4096))
    readers, jobs = [Told(), Told()], [read_job(0, 2, model.ids.placeholder), read_job(0, 3, model.ids.placeholder)]
    for one, reader in zip(jobs, readers, strict=True):
        scheduler.submit_read(one, reader)
    while scheduler.reads:
        scheduler.step()
    assert scheduler.figures().read_forwards == 1
    for one, reader in zip(jobs, readers, strict=True):
        (found,) = reader.events
        assert isinstance(found, ReadResult)
        readings = [reading for group in found.readings for reading in group]
        assert sum(reading.forwards for reading in readings) == 2  # the beginnings, and what is behind them
        queries = [query for group in one.groups for query in group]
        for query, reading in zip(queries, readings, strict=True):
            assert reading.log_p[0] == pytest.approx(read_canvases(model, [query])[0].log_p[0], abs=1e-12)
    assert sum(r.cached_tokens for group in readers[1].events[0].readings for r in group) > 0  # type: ignore[union-attr]


def scheduler_of(**limits: Any) -> Scheduler:
    return Scheduler(bundle("tiny-llada"), "eager", Limits(max_prefill_tokens=4096, **limits))


def run_out(scheduler: Scheduler) -> None:
    for _ in range(50):
        if not scheduler.reads:
            return
        scheduler.step()
    raise AssertionError("reads did not end")


def test_a_read_that_fails_or_needs_more_memory_takes_nobody_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first client's canvases fail whoever is beside them; three canvases at once do not fit into memory."""

    def fragile(model: Any, queries: Any, *more: Any) -> list[Reading]:
        if len({query.canvas for query in queries}) > 2:
            raise torch.OutOfMemoryError
        if any(query.canvas.tokens[0] == 5 for query in queries):
            raise ValueError("broken")
        return read_canvases(model, queries, *more)

    monkeypatch.setattr(reads_module, "read_canvases", fragile)
    scheduler, readers = scheduler_of(), [Told() for _ in range(3)]
    jobs = [read_job(number, 3, 60) for number in range(3)]
    for one, reader in zip(jobs, readers, strict=True):
        scheduler.submit_read(one, reader)
    run_out(scheduler)
    (failed,), *others = (reader.events for reader in readers)
    assert isinstance(failed, JobFailure) and failed.message == "reading failed (ValueError)."
    for one, (found,) in zip(jobs[1:], others, strict=True):
        assert isinstance(found, ReadResult)
        alone = [reading.log_p for group in one.groups for reading in read_canvases(scheduler.model, group)]
        assert [r.log_p for group in found.readings for r in group] == [
            tuple(pytest.approx(values, abs=1e-12) for values in log_p) for log_p in alone
        ]


def test_reads_wait_in_the_queue_of_all_and_leave_it_with_their_client() -> None:
    scheduler, readers = scheduler_of(max_waiting=2), [Told() for _ in range(2)]
    numbers = [scheduler.submit_read(read_job(n, 2, 60), reader) for n, reader in enumerate(readers)]
    with pytest.raises(Full):
        scheduler.submit_read(read_job(2, 1, 60), Told())
    with pytest.raises(Full):
        scheduler.submit(job(Request.answer([5], 4, 60), chosen(PARTS)), Client())
    scheduler.abort(numbers[0])
    run_out(scheduler)
    assert readers[0].events == [] and isinstance(readers[1].events[0], ReadResult)
    with pytest.raises(UserError, match="reads at most 8 at a time"):
        scheduler_of(max_tokens_in_flight=8).submit_read(read_job(0, 1, 60), Told())
    late = scheduler_of()
    late.submit_read(replace(read_job(0, 1, 60), deadline=time.monotonic() - 1), reader := Told())
    late.step()
    (told,) = reader.events
    assert isinstance(told, JobFailure) and told.kind == "timeout"


@pytest.mark.parametrize("exact", [False, True])
def test_a_forward_counts_as_shared_by_all_clients_who_wait(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each forward takes a second by this clock. Of three clients each has had a third of it, whoever was in it."""
    scheduler = scheduler_of(exact=exact)
    clock = SimpleNamespace(perf_counter=itertools.count().__next__, monotonic=time.monotonic)
    monkeypatch.setattr(reads_module, "time", clock)
    for number in range(3):
        scheduler.submit_read(read_job(number, 2, 60), Told())
    scheduler.step()
    assert scheduler.reads.share.had == pytest.approx(1 / 3)
