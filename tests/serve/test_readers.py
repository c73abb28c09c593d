"""Slow readers hold nobody up: newer states replace older ones, and who takes nothing is let go."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from dllm.models.bundle import Model
from dllm.record.trace import Trace
from dllm.serve.jobs import Done, Failed, Mailbox, Progress
from dllm.serve.scheduler import Scheduler
from tests.serve.conftest import Place, events


def progress(turn: int, final: int) -> Progress:
    return Progress(turn, 0, list(range(turn)), [False] * turn, final)


def test_a_slot_holds_the_newest_state_and_where_the_text_grew() -> None:
    async def act() -> None:
        box = Mailbox(2)
        for turn, final in ((1, 0), (2, 0), (3, 2), (4, 2), (5, 3)):
            box.slot(1)(progress(turn, final))
        ((row, mail),) = await box.take(asyncio.get_running_loop().time() + 1)
        assert (row, mail.latest, mail.grown, mail.end) == (1, progress(5, 3), [(1, 0), (3, 2), (5, 3)], None)
        with pytest.raises(TimeoutError):
            await box.take(asyncio.get_running_loop().time() + 0.01)
        box.slot(0)(Failed("error", "no.", "id"))
        box.slot(1)(progress(6, 3))
        found = dict(await box.take(asyncio.get_running_loop().time() + 1))
        assert isinstance(found[0].end, Failed) and found[1].grown == [] and found[1].latest == progress(6, 3)

    asyncio.run(act())


def test_delivering_never_waits_and_outlives_the_reader() -> None:
    async def act() -> Any:
        return Mailbox(1).slot(0)

    deliver = asyncio.run(act())  # its event loop is closed by now
    began = time.perf_counter()
    for turn in range(1, 1000):
        deliver(progress(turn, 0))
    assert time.perf_counter() - began < 1


def scope_of(path: str) -> dict[str, Any]:
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path,
        "raw_path": path.encode(), "query_string": b"", "headers": headers, "scheme": "http", "root_path": "",
        "server": ("localhost", 80), "client": ("127.0.0.1", 1),
    }  # fmt: skip


@pytest.mark.parametrize("leaves", [False, True], ids=["takes nothing", "leaves at once"])
def test_a_stream_that_nobody_reads_frees_its_row(served: Model, leaves: bool) -> None:
    """``send`` of a full connection does not return. Meanwhile another request is answered as ever."""
    scheduler = Scheduler(served, "eager")
    place = Place(served, scheduler, send_timeout=0.3)  # type: ignore[arg-type]
    body = {"prompt": "w1 w2", "max_tokens": 120, "stream": True, "diffusion": {"sampler": "static", "snapshots": True}}
    parts = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    full, sent = asyncio.Event(), 0

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        if not leaves:
            await asyncio.sleep(600)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal sent
        sent += 1
        if sent > 3:
            full.set()
            await asyncio.sleep(600)

    async def act() -> int:
        slow = asyncio.create_task(place.app(scope_of("/v1/completions"), receive, send))
        if not leaves:
            await full.wait()
        async with place.client() as client:
            reply = await client.post("/v1/completions", json={"prompt": "w3", "max_tokens": 8})
        await asyncio.wait_for(slow, 20)
        return reply.status_code

    assert asyncio.run(act()) == 200
    until = time.monotonic() + 5
    while (found := scheduler.figures()).rows and time.monotonic() < until:
        time.sleep(0.01)
    assert (found.rows, found.waiting, found.ended["aborted"], found.ended["done"]) == (0, 0, 1, 1)
    page = place.call("GET", "/metrics").text
    reason = "left" if leaves else "slow_reader"
    assert f'dllm_requests_cut_total{{reason="{reason}"}} 1.0' in page
    place.close()


def test_a_done_row_needs_no_progress() -> None:
    """A row that is not followed tells its end alone."""

    async def act() -> None:
        box = Mailbox(1)
        box.slot(0)(Done(None, [], 0.0, 1))  # type: ignore[arg-type]
        ((_, mail),) = await box.take(asyncio.get_running_loop().time() + 1)
        assert mail.latest is None and isinstance(mail.end, Done)

    asyncio.run(act())


def kept_at(trace: dict[str, Any], turn: int) -> dict[int, int]:
    """When each decided position kept its token, from 1, after the first ``turn`` forwards of a trace; of several
    candidates of the last one in the first."""
    found: dict[int, int] = {}
    path = Trace.from_json(trace).path()[:turn]
    for number, (turned, at) in enumerate([*path[:-1], (path[-1][0], 0)], 1):
        for position in (*turned.remasked[at], *turned.rolled[at]):
            found.pop(position, None)
        changed = [position for commits in turned.written(at) for position in commits.positions]
        found |= dict.fromkeys([*changed, *turned.filled[at]], number)
    return found


@pytest.mark.parametrize("diffusion", [
    {"sampler": "wino", "threshold": 0.2}, {"sampler": "remdm"}, {"sampler": "joint_threshold"}, {"sampler": "lopa"},
    {"sampler": {"name": "prophet", "region": "anchor", "anchor_text": "w5", "anchor_position": 7}},
], ids=str)  # fmt: skip
def test_every_snapshot_says_when_each_token_was_decided(served: Model, diffusion: dict[str, Any]) -> None:
    """By itself, so that a reader who misses the ones before shows the same; against the trace."""
    place = Place(served, Scheduler(served, "eager"))  # type: ignore[arg-type]
    told = events(place.ask(stream=True, temperature=0, diffusion={"snapshots": True, "trace": True, **diffusion}))
    (trace,) = [choice["diffusion"]["trace"]["trace"] for _, data in told if data != "[DONE]"
                for choice in data["choices"] if choice["finish_reason"]]  # fmt: skip
    shots = [data["diffusion"] for name, data in told if name]
    assert shots
    for shot in shots:
        decided = {at: turn for at, turn in enumerate(shot["turns"]) if turn}
        assert decided == kept_at(trace, shot["turn"]), shot["turn"]
        assert all(shot["words"][at] is not None for at in decided)
    place.close()
