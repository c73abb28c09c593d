"""Which requests share a running batch: numbers of the sampler and of the blocks belong to each row."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from harness import Combination, full

from dllm.canvas import Request
from dllm.compose.parts import part
from dllm.serve.jobs import Done, Limits
from dllm.serve.scheduler import Scheduler
from tests.serve.test_scheduler import Client, alone, bundle, chosen, job, requests


def test_settings_of_the_sampler_travel_with_the_request() -> None:
    combination = Combination("confidence", "fixed", "dual", "keep", "tiny-llada")
    todo = requests(random.Random(5), 4, 60)
    parts = [replace(chosen(combination), sampler=part("sampler", "confidence", threshold=threshold))
             for threshold in (0.3, 0.6, 0.05, 0.95)]  # fmt: skip
    expected = [alone(combination, one, own) for one, own in zip(todo, parts, strict=True)]
    assert len({nfe for _, nfe in expected}) > 1
    scheduler, clients = Scheduler(bundle("tiny-llada"), "eager"), [Client() for _ in todo]
    for one, own, client in zip(todo, parts, clients, strict=True):
        scheduler.submit(job(one, own), client)
        scheduler.step()
        assert len(scheduler.lanes) == 1
    while scheduler.lanes:
        scheduler.step()
    assert [(client.last.result.canvas, client.last.result.nfe) for client in clients] == expected


MIXED = [("confidence", "dual", "eager"), ("klass", "prefix", "eager"), ("confidence", "dual", "static")]
MORE = [("static", "none", "eager"), ("ete", "none", "eager"), ("klass", "none", "static"), ("eb", "elastic", "eager")]


@pytest.mark.parametrize(("sampler", "cache", "runtime"), MIXED + MORE * full())
def test_settings_of_the_blocks_travel_with_the_request(sampler: str, cache: str, runtime: str) -> None:
    combination = Combination(sampler, "fixed", cache, "keep", "tiny-llada")
    todo = [Request.answer([3, 4, 5 + seed], 24, 60, seed) for seed in range(4)]
    shapes = ((8, 1), (24, 1), (3, 1), (5, 2))
    parts = [replace(chosen(combination), blocks=part("blocks", "fixed", block_length=length, min_forwards=least))
             for length, least in shapes]  # fmt: skip
    expected = [alone(combination, one, own) for one, own in zip(todo, parts, strict=True)]
    assert len({nfe for _, nfe in expected}) > 1 or sampler == "static"
    scheduler, clients = Scheduler(bundle("tiny-llada"), runtime), [Client() for _ in todo]
    for one, own, client in zip(todo, parts, clients, strict=True):
        scheduler.submit(job(one, own), client)
        scheduler.step()
        assert len(scheduler.lanes) == 1
    while scheduler.lanes:
        scheduler.step()
    assert [(client.last.result.canvas, client.last.result.nfe) for client in clients] == expected


def test_every_setting_has_a_lane_and_none_starves() -> None:
    ways = [Combination(name, "fixed", cache, "keep", "tiny-llada")
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
