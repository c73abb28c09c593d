"""A server of two ranks: its replies are those of one process, it drains, and it ends with a rank that dies."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from queue import Empty
from typing import Any

import httpx
import psutil
import pytest
from harness import Combination

from dllm import load
from dllm.parts import (
    AGREES,
    Confidence,
    Follower,
    JobFailure,
    JobResult,
    Lead,
    Limits,
    PartsBuilder,
    RankDivergence,
    ReadOrder,
    Request,
    RequestParts,
    Runtime,
    Sampling,
    Scheduler,
    SettingBatch,
    State,
    Step,
    Turn,
    TurnOrder,
    View,
    configuration_of,
    follow,
    job_data,
    job_of,
    part_of,
    read_order,
)
from tests.serve.bodies import mini_defaults
from tests.serve.live import live
from tests.serve.load import MINI, Reply, drawn, reply_of
from tests.serve.test_scheduler import Client, bundle, cases, chosen, job, requests, with_rule

ROOT = Path(__file__).parents[2]
TurnLog = list[tuple[int, list[list[int]]]]


KNOWN: dict[str, RequestParts] = {}  # parts that a test made, by their recipe


def made(parts: RequestParts) -> RequestParts:
    KNOWN[parts.recipe] = parts
    return parts


class Knowing(Follower):
    """One that has the parts of a test, whatever their classes."""

    def setting_of(self, recipe: str) -> RequestParts:
        return KNOWN[recipe]


class Recorded:
    """Links to followers in this process, which obey at once."""

    size = 2
    late: list[int] = []  # noqa: RUF012

    def __init__(self, *followers: Follower) -> None:
        self.links, self.raised = list(followers), list[tuple[int, str, int]]()
        self.orders = list[TurnOrder | ReadOrder]()

    @property
    def inbox(self) -> Recorded:
        return self

    def empty(self) -> bool:
        return not self.raised

    def tell(self, *message: Any) -> None:
        if message[0] not in ("turn", "read"):
            return
        order = read_order(json.loads(json.dumps(message)))
        self.orders.append(order)
        for rank, follower in enumerate(self.links, 1):
            try:
                follower.obey(order)
            except ValueError:
                self.raised.append((rank, "raised", order.number))

    def hear(self, seconds: float) -> tuple[int, str, int]:
        assert seconds == AGREES
        if not self.raised:
            raise Empty
        return self.raised.pop(0)


def leading(name: str, follower: Follower | None = None, **limits: Any) -> tuple[Scheduler, Recorded]:
    links = Recorded(follower or Knowing(bundle(name), Runtime("eager")))
    lead = Lead(links)  # type: ignore[arg-type]
    return Scheduler(bundle(name), "eager", Limits(**limits), lead), links


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> TurnLog:
    """Each turn of a lane, with its number and its canvases: a follower's, then rank 0's."""
    kept: TurnLog = []
    usual = SettingBatch.turn

    def turn(lane: SettingBatch) -> Turn | None:
        found = usual(lane)
        kept.append((len(lane), [] if found is None else found.candidates.tokens.tolist()))
        return found

    monkeypatch.setattr(SettingBatch, "turn", turn)
    return kept


@pytest.mark.daily(1)
@pytest.mark.parametrize("case", list(islice(cases(), 12)), ids=lambda case: "-".join(map(str, case)))
def test_a_follower_takes_the_turns_of_rank_0(case: tuple[Combination, float, float], turns: TurnLog) -> None:
    """Jobs come and leave at random; the follower knows only its orders."""
    combination, heat, guidance = case
    dice = random.Random(3)
    scheduler, _ = leading(combination.model, max_rows=3)
    parts, clients, numbers = made(chosen(combination, heat, guidance)), list[Client](), list[int]()
    todo = requests(dice, 6, bundle(combination.model).config.mask_id or 0)
    while todo or scheduler.lanes or scheduler.queue:
        if todo and dice.random() < 0.4:
            clients.append(Client())
            numbers.append(scheduler.submit(job(todo.pop(), parts), clients[-1]))
        if len(numbers) == 4:
            scheduler.abort(numbers.pop())
        scheduler.step()
    assert turns[0::2] == turns[1::2]
    assert sum(isinstance(client.last, JobResult | JobFailure) for client in clients[:3]) == 3


class Breaks(Confidence):
    def step(self, view: View, state: State) -> Step:
        if bool((view.blocks.turn == 1).any()):
            raise ValueError("a bad part")
        return super().step(view, state)


class Deaf(Follower):
    """One whose turns never fail."""

    def obey(self, order: TurnOrder | ReadOrder) -> None:
        pass


def submitted(scheduler: Scheduler, rule: Confidence) -> Client:
    parts = with_rule(chosen(Combination("confidence", "fixed", "none", "none", "tiny-llada")), rule)
    parts = made(replace(parts, key=type(rule)))
    client = Client()
    scheduler.submit(job(Request.answer([3, 4], 12, 60), parts), client)
    return client


def test_a_turn_that_fails_on_every_rank_fails_its_job_alone() -> None:
    scheduler, links = leading("tiny-llada")
    bad, good = submitted(scheduler, Breaks(1.0)), submitted(scheduler, Breaks(1.0))
    while scheduler.lanes or scheduler.queue:
        scheduler.step()
    assert (bad.last.kind, good.last.kind) == ("error", "error")
    fine = submitted(scheduler, Confidence(1.0))
    while scheduler.lanes or scheduler.queue:
        scheduler.step()
    assert isinstance(fine.last, JobResult)
    opened = [order.lane for order in links.orders if isinstance(order, TurnOrder) and order.opening is not None]
    assert opened == [1, 2, 3, 4]  # together, each alone, and the fine one


def test_a_turn_that_fails_on_rank_0_alone_ends_the_server() -> None:
    scheduler, _ = leading("tiny-llada", Deaf(bundle("tiny-llada"), Runtime("eager")))
    submitted(scheduler, Breaks(1.0))
    with pytest.raises(RankDivergence, match="on rank 0 alone"):
        for _ in range(20):
            scheduler.step()


def test_a_turn_that_fails_on_a_follower_alone_ends_the_server() -> None:
    scheduler, links = leading("tiny-llada", Deaf(bundle("tiny-llada"), Runtime("eager")))
    submitted(scheduler, Confidence(1.0))
    scheduler.step()
    links.raised.append((1, "raised", 1))
    with pytest.raises(RankDivergence, match="on a follower alone"):
        scheduler.step()


def test_a_follower_obeys_until_rank_0_stops() -> None:
    class Messages:
        def __init__(self, *messages: tuple[str, ...]) -> None:
            self.left = [*messages]

        def hear(self) -> tuple[str, ...]:
            return self.left.pop(0)

    links = Messages(("stop",), ("later",))
    follow(bundle("tiny-llada"), Runtime("eager"), links)  # type: ignore[arg-type]
    assert links.left == [("later",)]


@pytest.mark.parametrize(
    "constraint",
    [
        None,
        {"name": "choice", "options": ["yes", "no"]},
        {"name": "regex", "pattern": "a+", "joint": True},
        {"name": "json_schema", "schema": {"type": "object", "properties": {"b": {"type": "null"}, "a": True}}},
        {"name": "call", "functions": [{"name": "f", "parameters": {"type": "object"}}]},
        {"name": "grammar", "grammar": 'start: "a"'},
    ],
    ids=lambda one: one and one["name"],
)
def test_a_job_and_its_parts_arrive_whole(constraint: dict[str, Any] | None) -> None:
    model = load("mini-llada")
    sent, came = PartsBuilder(mini_defaults(model)), Follower(model, Runtime("eager"))
    asked = {"sampler": {"name": "static", "per_step": 2}, "cache": "prefix", "eos": "none"}
    parts = sent.choose(asked, Sampling(temperature=0.7, top_k=3), 12)
    request = Request(
        [5, 6, 7, 1, 1],
        [False] * 3 + [True] * 2,
        2**61 + 1,
        3,
        temperature=0.1 + 0.2,
        gap=4,
        probes=((3, 0.1),),
        constraint=None if constraint is None else part_of("constraint", constraint),
    )
    sent_job = job(request, parts, ident="x", tenant="key", likeliest=3, grows_to=40)
    data = json.loads(json.dumps(job_data(sent_job)))
    there = job_of(data, came.setting_of(data["setting"]))
    assert (there.request, there.deadline) == (request, 0.0)
    assert replace(there, setting=parts, deadline=sent_job.deadline) == sent_job
    assert (there.setting.config, there.setting.key) == (parts.config, parts.key)
    assert {group: configuration_of(group, getattr(there.setting.parts, group)) for group in parts.config} == {
        group: configuration_of(group, getattr(parts.parts, group)) for group in parts.config
    }
    assert there.setting.parts.sampling == parts.parts.sampling


@dataclass
class Served:
    process: subprocess.Popen[str]
    url: str

    @property
    def follower(self) -> psutil.Process:
        (other,) = psutil.Process(self.process.pid).children()
        return other

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=300)


@contextmanager
def two_ranks(*words: str) -> Iterator[Served]:
    command = [sys.executable, "-m", "dllm", "serve", "model.tp=2", "task.port=0", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+:\d+", process.stdout.readline())
        assert found is not None, process.communicate(timeout=10)
        yield Served(process, found[0])
    finally:
        process.kill()


def body_of(dice: random.Random) -> dict[str, Any]:
    """A request as ``drawn``, or under a constraint, guided, or with log-probabilities."""
    body = drawn(dice, MINI)
    if dice.random() > 0.4:
        return body
    kinds: list[dict[str, Any]] = [
        {"guided_choice": ["yes", "no", "perhaps"]},
        {"structured_outputs": {"regex": "[A-D](,[A-D]){3}"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "boolean"}}}},
        {"diffusion": {"guidance": 1.0}},
        {"logprobs": True, "top_logprobs": 2},
    ]
    return {"messages": body["messages"], "seed": body["seed"], "max_tokens": 24, **dice.choice(kinds)}


def cancelled(client: httpx.Client, body: dict[str, Any]) -> None:
    """Ask, and leave after the first chunk."""
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as reply:
        next(reply.iter_lines(), None)


@pytest.mark.program
def test_two_hundred_mixed_replies_are_those_of_one_process() -> None:
    dice = random.Random(21)
    bodies = [body_of(dice) for _ in range(200)]
    settings: dict[str, Any] = {"limits": Limits(max_rows=6, max_waiting=64), "timeout": 600.0}
    model = load("mini-llada", dtype="float64")
    with live(model, defaults=mini_defaults(model), **settings) as one, one.client() as client:
        alone: list[Reply] = [reply_of(client, {**body, "model": "mini"}, False) for body in bodies]
    with two_ranks("model.dtype=float64", "task.max_rows=6", "task.timeout=600", "gen_length=32") as two:
        client = two.client()

        def asked(number: int) -> Reply:
            if number % 5 == 0:
                cancelled(client, bodies[-number])
            return reply_of(client, bodies[number], number % 2 == 1)

        with ThreadPoolExecutor(12) as crowd:
            found = list(crowd.map(asked, range(len(bodies))))
        page = client.get("/metrics").text
    differ = [number for number in range(len(bodies)) if alone[number] != found[number]]
    assert differ == [], [(bodies[n], alone[n], found[n]) for n in differ[:2]]
    assert "dllm_ranks 2.0" in page
    assert sum(end == "refused" for reply in alone for _, end, _ in reply) < 60


LONG = {
    "messages": [{"role": "user", "content": "Latin square: A,B,C,D"}],
    "max_tokens": 200,
    "diffusion": {"sampler": "static", "eos": "none"},
}


def under_way(served: Served, crowd: ThreadPoolExecutor) -> Any:
    """A long answer that has begun."""
    reply = crowd.submit(lambda: served.client().post("/v1/chat/completions", json=LONG))
    while "dllm_rows 1.0" not in served.client().get("/metrics").text:
        assert served.process.poll() is None and not reply.done()
        time.sleep(0.02)
    return reply


@pytest.mark.program
def test_sigterm_lets_the_answer_under_way_finish() -> None:
    with two_ranks() as served, ThreadPoolExecutor(1) as crowd:
        reply = under_way(served, crowd)
        follower = served.follower
        served.process.terminate()
        assert reply.result(120).status_code == 200
        assert served.process.wait(15) == 0
        assert not follower.is_running()


@pytest.mark.program
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_server_ends_with_its_follower(sign: signal.Signals) -> None:
    with two_ranks("model.tp_timeout=6") as served, ThreadPoolExecutor(1) as crowd:
        reply = under_way(served, crowd)
        began = time.monotonic()
        served.follower.send_signal(sign)
        failed = reply.result(15)
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "closing")
        _, said = served.process.communicate(timeout=15)
        assert served.process.returncode == 75
        assert time.monotonic() - began < 15
        assert len(re.findall(r"^Error: rank 1 of 2 has", said, re.MULTILINE)) == 1
