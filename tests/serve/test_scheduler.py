"""A job's answer is the same alone and under load, whoever arrives, leaves or fails beside it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import MODELS, Combination, allowed, drawn, full, model, parts_of, results

from dllm.parts import (
    Closing,
    Confidence,
    Event,
    Full,
    Ids,
    Job,
    JobFailure,
    JobResult,
    Limits,
    Model,
    Progress,
    Request,
    RequestParts,
    Sampler,
    Sampling,
    Scheduler,
    SettingBatch,
    State,
    Step,
    Turn,
    UserError,
    View,
    choices,
    waits_idle,
)

TIMEOUT = 60.0
RECIPES = count()


@cache
def bundle(name: str) -> Model:
    network = model(name, torch.float64)
    config = network.config
    return Model(network, config, None, Ids(config.mask_id or 0, config.eos_id or 0, ()), name, Path(name))


class Client:
    """What one client was told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended = threading.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, JobResult | JobFailure):
            self.ended.set()

    @property
    def last(self) -> Any:
        assert self.ended.wait(TIMEOUT), "the job never ended"
        return self.events[-1]


@contextmanager
def serving(name: str, limits: Limits = Limits(), runtime: str = "eager") -> Iterator[Scheduler]:  # noqa: B008  frozen
    scheduler = Scheduler(bundle(name), runtime, limits)
    scheduler.start()
    yield scheduler
    scheduler.close(0.0)
    scheduler.thread.join(TIMEOUT)


def chosen(combination: Combination, heat: float = 0.0, guidance: float = 0.0, **options: Any) -> RequestParts:
    parts = parts_of(combination, Sampling(temperature=heat, guidance=guidance))
    sampling = Sampling(temperature=heat, guidance=guidance, tempered=parts.sampler.traits.tempered)
    for option, value in options.items():
        setattr(parts.sampler, option, value)
    key = str(combination), heat > 0, guidance
    return RequestParts(replace(parts, sampling=sampling), {}, key, str(next(RECIPES)))


def with_rule(parts: RequestParts, rule: Sampler) -> RequestParts:
    return replace(parts, parts=replace(parts.parts, sampler=rule), recipe=str(next(RECIPES)))


def job(request: Request, parts: RequestParts, **options: Any) -> Job:
    return Job(request, parts, time.monotonic() + TIMEOUT, **options)


def requests(noise: random.Random, count: int, mask: int) -> list[Request]:
    """Prompts and answers of many lengths, and some holes."""
    out = []
    for seed in range(count):
        prompt = [noise.randrange(1, 50) for _ in range(noise.randint(1, 70))]
        if noise.random() < 0.25:
            tokens = [*prompt, *(mask if noise.random() < 0.5 else noise.randrange(1, 50) for _ in range(14)), mask]
            out.append(Request(tokens, [token == mask for token in tokens], seed))
        else:
            out.append(Request.answer(prompt, noise.randint(3, 20), mask, seed))
    return out


def alone(combination: Combination, one: Request, parts: RequestParts) -> tuple[list[int], int]:
    network = model(combination.model, torch.float64)
    whole = parts.parts
    found = results(network, whole, [whole.sampler.prepare(one)], whole.sampling)[0]
    return found.canvas, found.nfe


def cases() -> Iterator[tuple[Combination, float, float]]:
    parts = choices("sampler"), choices("blocks"), choices("cache"), choices("eos"), MODELS
    for *names, heat, guidance in drawn(*parts, (0.0, 0.0, 0.9), (0.0, 0.5)):
        combination = Combination(*names)
        if combination.sampler == "oracle" or not allowed(combination):
            continue
        try:
            chosen(combination, heat, guidance)
        except UserError:
            continue
        yield combination, heat, guidance


def served(todo: list[Request], parts: RequestParts, combination: Combination, runtime: str = "eager") -> None:
    """J1, J2, J3: decode ``todo``, of which one leaves on the way, and compare every other with its answer alone."""
    noise = random.Random(f"{combination} {len(todo)}")
    scheduler = Scheduler(bundle(combination.model), runtime, Limits(max_rows=3))
    arrivals = sorted(noise.randint(0, 12) for _ in todo)
    clients, leaver, leaves = [Client() for _ in todo], noise.randrange(len(todo)), noise.randint(2, 20)
    for turn in range(5000):
        while arrivals and arrivals[0] <= turn:
            place = len(todo) - len(arrivals)
            scheduler.submit(job(todo[place], parts, snapshots=place % 2 == 0), clients[place])
            arrivals.pop(0)
        if turn == leaves + 5 and len(todo) - len(arrivals) > leaver:
            scheduler.abort(leaver + 1)
        scheduler.step()
        if not arrivals and not scheduler.queue and not scheduler.lanes:
            break
    for place, (one, client) in enumerate(zip(todo, clients, strict=True)):
        if place == leaver and not client.ended.is_set():
            continue
        done = client.last
        assert isinstance(done, JobResult), done
        assert (done.result.canvas, done.result.nfe) == alone(combination, one, parts)
        check_prefix(client.events, done)


def check_prefix(events: list[Event], done: JobResult) -> None:
    """A final prefix never changes and never shrinks."""
    before: list[int] = []
    for event in events:
        if isinstance(event, Progress):
            assert event.tokens[: len(before)] == before and event.final >= len(before)
            assert not any(event.masked[: event.final])
            before = event.tokens[: event.final]
    assert done.result.canvas[: len(before)] == before


@pytest.mark.parametrize(("combination", "heat", "guidance"), list(islice(cases(), 300 if full() else 8)), ids=str)
def test_rows_that_come_and_go_decode_as_they_do_alone(combination: Combination, heat: float, guidance: float) -> None:
    parts, noise = chosen(combination, heat, guidance), random.Random(f"{combination} {heat} {guidance}")
    served(requests(noise, 6, model(combination.model).config.mask_id or 0), parts, combination)


STATIC = [
    Combination(sampler, "whole" if cache == "window" else "fixed", cache, "fill_after_block", "tiny-llada")
    for sampler, cache in (("confidence", "dual"), ("credit", "prefix"), ("localleap", "none"), ("klass", "prefix"))
]


@pytest.mark.parametrize("combination", STATIC, ids=str)
def test_so_they_do_in_static_turns(combination: Combination) -> None:
    served(requests(random.Random(3), 6, 60), chosen(combination), combination, "static")


def test_exact_rows_share_no_forward() -> None:
    parts = chosen(Combination("confidence", "fixed", "dual", "none", "tiny-llada"))
    scheduler, clients = Scheduler(bundle("tiny-llada"), "eager", Limits(exact=True, max_rows=3)), [Client(), Client()]
    for seed, client in enumerate(clients):
        scheduler.submit(job(Request.answer([3, 4 + seed], 12, 60), parts), client)
    scheduler.step()
    assert len(scheduler.lanes) == 2 and all(len(lane) == 1 for lane in scheduler.lanes.values())


class Poisoned(Confidence):
    """A rule that fails in rows of one seed."""

    def step(self, view: View, state: State) -> Step:
        if bool((view.canvas.seed == 666).any()) and bool((view.blocks.turn > 2).any()):
            raise RuntimeError("poison")
        return super().step(view, state)


def test_a_poisoned_row_fails_alone() -> None:
    combination = Combination("confidence", "fixed", "dual", "none", "tiny-llada")
    parts = with_rule(chosen(combination), Poisoned(0.99))
    todo = [Request.answer([3, 4, 5 + seed % 9], 16, 60, seed) for seed in (1, 666, 2, 3)]
    expected = [alone(combination, one, with_rule(parts, Confidence(0.99))) for one in todo]
    scheduler, clients = Scheduler(bundle("tiny-llada"), "eager"), [Client() for _ in todo]
    for one, client in zip(todo, clients, strict=True):
        scheduler.submit(job(one, parts), client)
    while scheduler.lanes or scheduler.queue:
        scheduler.step()
    for one, client, answer in zip(todo, clients, expected, strict=True):
        if one.seed == 666:
            assert isinstance(client.last, JobFailure) and client.last.kind == "error"
            assert "poison" not in client.last.message
            continue
        assert (client.last.result.canvas, client.last.result.nfe) == answer
        turns = [event.turn for event in client.events if isinstance(event, Progress)]
        assert turns == sorted(set(turns))  # a stream goes on where it was
        check_prefix(client.events, client.last)


class Stalled(Confidence):
    """A rule that commits nothing in rows of one seed."""

    def step(self, view: View, state: State) -> Step:
        step = super().step(view, state)
        return step.but(commit=step.commit & (view.canvas.seed != 666)[:, None])


def test_a_row_that_gets_no_further_fails_alone_and_says_why() -> None:
    combination = Combination("confidence", "fixed", "dual", "none", "tiny-llada")
    parts = with_rule(chosen(combination), Stalled(0.99))
    todo = [Request.answer([3, 4, 5 + seed % 9], 24, 60, seed) for seed in (1, 666, 2)]
    scheduler, clients = Scheduler(bundle("tiny-llada"), "eager"), [Client() for _ in todo]
    for one, client in zip(todo, clients, strict=True):
        scheduler.submit(job(one, parts), client)
    while scheduler.lanes or scheduler.queue:
        scheduler.step()
    assert isinstance(clients[1].last, JobFailure) and clients[1].last.kind == "forwards"
    assert clients[1].last.message.startswith("sampler=Stalled decided nothing in 17 forwards in a row")
    for one, client in ((todo[0], clients[0]), (todo[2], clients[2])):
        answer = alone(combination, one, with_rule(parts, Confidence(0.99)))
        assert (client.last.result.canvas, client.last.result.nfe) == answer


def test_memory_that_runs_out_halves_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    combination = Combination("confidence", "fixed", "dual", "none", "tiny-llada")
    todo = [Request.answer([3, 4, 5 + seed], 16, 60, seed) for seed in range(4)]
    scheduler, clients, parts = Scheduler(bundle("tiny-llada"), "eager"), [Client() for _ in todo], chosen(combination)
    whole = SettingBatch.turn

    def small(self: SettingBatch) -> Turn | None:
        if len(self) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(self)

    monkeypatch.setattr(SettingBatch, "turn", small)
    for one, client in zip(todo, clients, strict=True):
        scheduler.submit(job(one, parts), client)
    while scheduler.lanes or scheduler.queue:
        scheduler.step()
    assert scheduler.rows == 1
    assert [(client.last.result.canvas, client.last.result.nfe) for client in clients] == [
        alone(combination, one, parts) for one in todo
    ]


def test_limits_and_ends() -> None:
    parts = chosen(Combination("confidence", "fixed", "none", "none", "tiny-llada"))
    one = Request.answer([3, 4], 12, 60)
    scheduler = Scheduler(bundle("tiny-llada"), "eager", Limits(max_rows=1, max_waiting=2, max_tokens_in_flight=128))
    late, waiting = Client(), [Client(), Client()]
    scheduler.submit(replace(job(one, parts), deadline=time.monotonic() - 1), late)
    for client in waiting[:1]:
        scheduler.submit(job(one, parts), client)
    with pytest.raises(Full):
        scheduler.submit(job(one, parts), waiting[1])
    with pytest.raises(UserError, match="at most 128"):
        scheduler.submit(job(Request.answer([3] * 120, 30, 60), parts), Client())
    scheduler.step()
    assert isinstance(late.last, JobFailure) and late.last.kind == "timeout"
    scheduler.close(0.0)
    with pytest.raises(Closing):
        scheduler.submit(job(one, parts), Client())
    time.sleep(0.01)
    scheduler.step()
    assert isinstance(waiting[0].last, JobFailure) and waiting[0].last.kind == "closing" and scheduler.state == "closed"


def test_rows_of_a_request_under_way_are_finished_when_the_server_stops() -> None:
    """What waits is turned away, so that its client asks another server; but not the rest of an answer that began."""
    parts = chosen(Combination("confidence", "fixed", "none", "none", "tiny-llada"))
    scheduler = Scheduler(bundle("tiny-llada"), "eager", Limits(max_rows=1))
    begun, other = [Client() for _ in range(3)], Client()
    for client in begun:
        scheduler.submit(job(Request.answer([3, 4], 12, 60), parts, ident="begun"), client)
    scheduler.submit(job(Request.answer([3, 4], 12, 60), parts, ident="other"), other)
    scheduler.step()
    scheduler.close(TIMEOUT, waiting=False)
    while scheduler.state == "closing":
        scheduler.step()
    assert [type(client.last) for client in begun] == [JobResult] * 3
    assert isinstance(other.last, JobFailure) and other.last.kind == "closing"


def test_a_server_composes_while_nothing_is_decoded() -> None:
    parts = chosen(Combination("confidence", "fixed", "none", "none", "tiny-llada"))
    scheduler, client, told = Scheduler(bundle("tiny-llada"), "eager"), Client(), list[bool]()
    asking = lambda: threading.Thread(target=lambda: told.append(waits_idle(scheduler, 0.2)))  # noqa: E731
    scheduler.submit(job(Request.answer([3, 4], 12, 60), parts), client)
    waits = asking()
    waits.start()
    waits.join(0.6)
    assert told == []  # a job waits
    while not client.ended.is_set():
        assert told == []  # turns are taken
        scheduler.step()
    waits.join(20)
    assert told == [True]
    last = asking()
    scheduler.close(0)
    last.start()
    last.join(20)
    assert told == [True, False]


def test_the_thread_decodes_and_drains() -> None:
    parts = chosen(Combination("confidence", "fixed", "dual", "none", "tiny-llada"))
    clients = [Client() for _ in range(6)]
    with serving("tiny-llada", Limits(max_rows=2)) as scheduler:
        for client in clients:
            scheduler.submit(job(Request.answer([3, 4], 12, 60), parts), client)
        scheduler.close(TIMEOUT)
        assert all(isinstance(client.last, JobResult) for client in clients)
        scheduler.thread.join(TIMEOUT)
        assert scheduler.state == "closed" and scheduler.figures().endings["done"] == 6


def test_a_thread_that_dies_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Scheduler) -> None:
        raise SystemError("the device is lost")

    monkeypatch.setattr(Scheduler, "_admit", broken)
    client = Client()
    with serving("tiny-llada") as scheduler:
        scheduler.submit(job(Request.answer([3, 4], 12, 60), chosen(STATIC[0])), client)
        assert isinstance(client.last, JobFailure) and client.last.kind == "error"
        assert scheduler.state == "failed"
