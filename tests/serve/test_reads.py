"""Reads beside decodes, step by step: bounded, and whoever had the least of the device is next."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import Combination

from dllm.contract.canvas import Request
from dllm.decisions.reading import ReadCanvas, Reading, ReadQuery, read_canvases
from dllm.errors import UserError
from dllm.serve import reads as reads_module
from dllm.serve.jobs import Failed, Full, Limits
from dllm.serve.reads import ReadDone, ReadJob
from dllm.serve.scheduler import Scheduler
from tests.serve.test_scheduler import Client, bundle, chosen, job

PARTS = Combination("order", "whole")
COLUMNS = 64  # of a forward of reads


def read_job(number: int, questions: int, mask: int) -> ReadJob:
    """Questions of two canvases each, of 12 to 20 columns; ``number`` tells the jobs' prompts apart."""
    groups = []
    for question in range(questions):
        prompt = (5 + number, *range(7, 17 + question % 9))
        canvases = [ReadCanvas((*prompt, *begin, mask), frozenset({len(prompt) + len(begin)}), len(prompt))
                    for begin in ((), (9,))]  # fmt: skip
        groups.append([ReadQuery(one, ((len(one.tokens) - 1, (5, 6, 7)),)) for one in canvases])
    return ReadJob(groups, time.monotonic() + 60)


class Told:
    """What the client of a read was told."""

    def __init__(self) -> None:
        self.events: list[ReadDone | Failed] = []

    def __call__(self, event: ReadDone | Failed) -> None:
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
    monkeypatch.setattr(scheduler, "_read", noted("read", scheduler._read))
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
        assert isinstance(found, ReadDone)
        for queries, readings in zip(one.groups, found.readings, strict=True):
            alone = read_canvases(model, queries)
            for query, reading_, expected in zip(queries, readings, alone, strict=True):
                assert len(reading_.log_p) == len(query.wanted)
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
        assert isinstance(found, ReadDone)
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
    assert isinstance(failed, Failed) and failed.message == "reading failed (ValueError)."
    for one, (found,) in zip(jobs[1:], others, strict=True):
        assert isinstance(found, ReadDone)
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
    assert readers[0].events == [] and isinstance(readers[1].events[0], ReadDone)
    with pytest.raises(UserError, match="reads at most 8 at a time"):
        scheduler_of(max_tokens_in_flight=8).submit_read(read_job(0, 1, 60), Told())
    late = scheduler_of()
    late.submit_read(replace(read_job(0, 1, 60), deadline=time.monotonic() - 1), reader := Told())
    late.step()
    (told,) = reader.events
    assert isinstance(told, Failed) and told.kind == "timeout"


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
