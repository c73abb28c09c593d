"""What requests share of their prompts: the same tokens and forwards with and without, and what is told of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from harness import Combination
from test_scheduler import Client, bundle, chosen, job

from dllm.parts import ChatWriter, ChoiceEnd, JobResult, Limits, Request, Scheduler, column_bytes

COMMON = [7, 3, 41, 9, 12, 30, 8, 2, 19, 5, 28, 33, 4, 11, 6, 14, 21, 39]
ENDS = [[9, 1, 9, 2, 7, 3], [9, 1, 4], [9, 1, 9, 2, 7, 3], [9, 1, 9, 2, 8], [17, 5, 1]]  # [9, 1] is half of a block


def decoded(
    name: str, limits: Limits, rounds: int = 2, runtime: str = "eager", **job_options: Any
) -> list[list[JobResult]]:
    """What the requests get, all at once and then all again."""
    combination = Combination("confidence", "fixed", "finished", model=name)
    scheduler, parts, mask = Scheduler(bundle(name), runtime, limits), chosen(combination), bundle(name).ids.mask or 0
    told = []
    for _ in range(rounds):
        clients = [Client() for _ in ENDS]
        for seed, (end, client) in enumerate(zip(ENDS, clients, strict=True)):
            scheduler.submit(job(Request.answer([*COMMON, *end], 9, mask, seed), parts, **job_options), client)
        while not all(client.ended.is_set() for client in clients):
            scheduler.step()
        told.append([client.last for client in clients])
    return told


def answers(told: list[list[JobResult]]) -> list[list[tuple[list[int], int]]]:
    return [[(one.result.canvas, one.result.nfe) for one in each] for each in told]


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "name, runtime", [("sdar_b4", "eager"), ("sdar_b4", "static"), ("tiny-wedlm", "eager"), ("efficient_dlm", "eager")]
)
def test_shared_prompts_change_no_answer(name: str, runtime: str) -> None:
    """Cold, warm, after eviction, one row at a time and all at once; five prompts that part inside a block."""
    plain = decoded(name, Limits(prefix_gib=0), runtime=runtime)
    assert all(one.cached_tokens == 0 or one.cached_tokens is None for each in plain for one in each)
    scarce = 12 * column_bytes(bundle(name)) / 2**30
    for limits in (Limits(), Limits(max_rows=1), Limits(prefix_gib=scarce)):
        assert answers(decoded(name, limits, runtime=runtime)) == answers(plain)


def test_what_was_known_is_told() -> None:
    """Whole blocks of four: 20 of the prompts' columns are common to the first four, and 16 to all."""
    cold, warm = decoded("sdar_b4", Limits())
    assert [one.cached_tokens for one in cold] == [0, 20, 24, 20, 16]
    assert [one.cached_tokens for one in warm] == [24, 20, 24, 20, 20]
    assert warm[0].result.query_tokens < cold[0].result.query_tokens - 20


def test_the_same_prompts_at_once_are_computed_once() -> None:
    name = "sdar_b4"
    scheduler, parts = (
        Scheduler(bundle(name), "eager"),
        chosen(Combination("confidence", "fixed", "finished", model=name)),
    )
    clients = [Client() for _ in range(4)]
    for seed, client in enumerate(clients):
        scheduler.submit(job(Request.answer([*COMMON, 1, 2], 9, bundle(name).ids.mask or 0, seed), parts), client)
    while not all(client.ended.is_set() for client in clients):
        scheduler.step()
    assert [client.last.cached_tokens for client in clients] == [0, 20, 20, 20]
    figures = scheduler.figures()
    assert (figures.cached_tokens, figures.prefix_evicted) == (60, 0) and figures.prefix_columns >= 20


def test_tenants_share_nothing() -> None:
    combination = Combination("confidence", "fixed", "finished", model="sdar_b4")
    scheduler, parts, known = Scheduler(bundle("sdar_b4"), "eager"), chosen(combination), []
    for tenant in ("one", "other", "one"):
        client = Client()
        scheduler.submit(job(Request.answer(COMMON, 4, bundle("sdar_b4").ids.mask or 0), parts, tenant=tenant), client)
        while not client.ended.is_set():
            scheduler.step()
        known.append(client.last.cached_tokens)
    assert known == [0, 0, 16]


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_full_attention_shares_nothing(name: str) -> None:
    scheduler = Scheduler(bundle(name), "eager")
    assert scheduler.pages is None
    client, parts = Client(), chosen(Combination("confidence", "fixed", "dual", model=name))
    scheduler.submit(job(Request.answer(COMMON, 4, bundle(name).ids.mask or 0), parts), client)
    while not client.ended.is_set():
        scheduler.step()
    assert client.last.cached_tokens is None


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", ["sdar_b4", "tiny-wedlm", "tiny-nbdiff", "tiny-a2d-bd3lm"])
@pytest.mark.parametrize("gib", [0.0, 1.0])
def test_prompts_in_chunks_change_no_answer(name: str, gib: float) -> None:
    plain = decoded(name, Limits(prefix_gib=0))
    chunked = decoded(name, Limits(prefix_gib=gib, prefill_chunk=8))
    assert answers(chunked) == answers(plain)
    known = [one.cached_tokens for one in chunked[1]]
    assert min(one or 0 for one in known) >= 16 if gib else not any(known)


def test_a_long_prompt_waits_for_its_chunks_while_others_take_turns() -> None:
    """Two chunks of eight and one of four before its first turn; what they computed counts."""
    name, mask = "sdar_b4", bundle("sdar_b4").ids.mask or 0
    scheduler = Scheduler(bundle(name), "eager", Limits(prefix_gib=0, prefill_chunk=8))
    parts, clients = chosen(Combination("confidence", "fixed", "finished", model=name)), [Client(), Client()]
    for client, prompt in zip(clients, (COMMON[:5], [*COMMON, 1, 2]), strict=True):
        scheduler.submit(job(Request.answer(prompt, 12, mask), parts), client)
    waiting = []
    while not clients[1].ended.is_set():
        scheduler.step()
        waiting.append([len(lane.waiting) for lane in scheduler.lanes.values()])
    assert waiting[:3] == [[1], [1], [0]]
    whole = decoded_alone(Request.answer([*COMMON, 1, 2], 12, mask), name)
    assert clients[1].last.result.canvas == whole.result.canvas
    # every forward computes the open block, whose first four columns are the prompt's last
    assert clients[1].last.result.query_tokens == whole.result.query_tokens + 4


def decoded_alone(request: Request, name: str) -> JobResult:
    client, scheduler = Client(), Scheduler(bundle(name), "eager", Limits(prefix_gib=0))
    scheduler.submit(job(request, chosen(Combination("confidence", "fixed", "finished", model=name))), client)
    while not client.ended.is_set():
        scheduler.step()
    last: JobResult = client.last
    return last


def test_a_row_joins_when_there_is_memory_for_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for the keys of one row of 64 columns, two requests are decoded one after the other."""
    name, most = "sdar_b4", 0
    room = 64 * column_bytes(bundle(name))
    monkeypatch.setattr("dllm.serve.engine.scheduler.free_bytes", lambda *_: room)
    scheduler, clients = Scheduler(bundle(name), "eager"), [Client(), Client()]
    parts = chosen(Combination("confidence", "fixed", "finished", model=name))
    for seed, client in enumerate(clients):
        scheduler.submit(job(Request.answer([*COMMON[: 9 + seed]], 4, bundle(name).ids.mask or 0, seed), parts), client)
    while not all(client.ended.is_set() for client in clients):
        scheduler.step()
        most = max(most, scheduler.figures().rows)
    assert most == 1


def test_usage_counts_each_prompt_once() -> None:
    """Two choices of one prompt, of which the second knew it of the first, and one of another."""
    rows = [Request.answer(prompt, 3, 0) for prompt in ([1, 2], [1, 2], [3, 4])]
    parsed: Any = SimpleNamespace(jobs=[SimpleNamespace(request=one) for one in rows], prompt_tokens=4, thinking=None)
    told = ChatWriter("a", parsed, parsed)
    for choice, cached in enumerate((0, 2, 1)):
        told.take(ChoiceEnd(choice, "stop", 3, {}, cached_tokens=cached))
    assert told.usage()["prompt_tokens_details"] == {"cached_tokens": 1}
    assert "prompt_tokens_details" not in ChatWriter("a", parsed, parsed).usage()
