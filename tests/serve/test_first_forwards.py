"""Samples of one prompt share its first forward: the same tokens as when each row runs its own, and what it saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from harness import MODELS, Combination, allowed, model, parts_of, requests
from recording import FakeGraph
from test_scheduler import Client, bundle, chosen, job

from dllm.parts import Limits, RecordedTurns, Request, Runner, Runtime, Sampling, Scheduler, choices

FULL = ("delayed", "dkv", "dkv_prefill", "dual", "entropy", "none", "prefix", "recap", "sparse_dllm", "sparsed",
        "streaming", "vicinity", "window")  # fmt: skip
LEAD = {*FULL, "dkv_greedy", "dkv_pd", "finished"}


def runner_of(name: str, cache: str, runtime: str, heat: float = 0.8) -> Runner:
    sampling = Sampling(temperature=heat)
    runner = Runner.of(
        bundle(name),
        parts_of(Combination("static", "fixed", cache, "none", name), sampling),
        Runtime("eager" if runtime == "recorded" else runtime),
    )
    if runtime != "recorded":
        return runner
    take = RecordedTurns(model(name), lambda: FakeGraph([]))
    return replace(runner, runtime=Runtime("static", 0), take=take)


def samples() -> list[Request]:
    """Three of one prompt, one of another, and two of a third."""
    one, other, third = requests()
    rows = [one, other, one, third, one, third]
    return [replace(row, seed=seed, param_index=seed) for seed, row in enumerate(rows)]


def decoded(runner: Runner, todo: Sequence[Request], most: int) -> list[tuple[list[int], int]]:
    """What each row ends as, and how many query rows it took in its layers on the average."""
    out = dict[int, tuple[list[int], int]]()
    for turn in runner.stream(todo, most, lambda place, request: None):
        for row in turn.finished:
            place = int(turn.candidates.row_id[row])
            tokens = turn.candidates.tokens[row, : len(todo[place].tokens)].tolist()
            out[place] = tokens, int(turn.ledger.queries[row].mean())
    return [out[place] for place in range(len(todo))]


CASES = [
    *((name, cache, "eager") for cache in FULL for name in MODELS[1:2]),
    ("sdar_b4", "finished", "eager"),
    ("sdar_b4", "none", "static"),
    ("tiny-dream", "sparse_dllm", "static"),
    ("tiny-llada", "none", "recorded"),
    ("tiny-dream", "prefix", "recorded"),
]


@pytest.mark.daily(2)
@pytest.mark.parametrize(("name", "cache", "runtime"), CASES)
@pytest.mark.parametrize("most", [6, 4])
def test_samples_of_a_prompt_share_a_forward(
    name: str, cache: str, runtime: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once, and where rows join later: a row that is led is spared its whole canvas once."""
    todo = samples()
    found = decoded(runner_of(name, cache, runtime), todo, most)
    monkeypatch.setattr(Runner, "leads", False)
    alone = decoded(runner_of(name, cache, runtime), todo, most)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in alone]
    spared = [before - after for (_, after), (_, before) in zip(found, alone, strict=True)]
    together = {6: [2, 4, 5], 4: [2]}[most]  # with four rows the last two begin when others have ended
    expected = [len(one.tokens) * (place in together) for place, one in enumerate(todo)]
    assert [bool(one) for one in spared] == [bool(one) for one in expected]
    assert spared == expected or cache in ("finished", "streaming", "window"), "some leave out masks"


@pytest.mark.parametrize("name", [*MODELS[:3]])
def test_which_caches_lead(name: str) -> None:
    for cache in choices("cache"):
        combination = Combination("order" if cache == "dkv_greedy" else "static", "fixed", cache, "none", name)
        if allowed(combination):
            runner = Runner.of(bundle(name), parts_of(combination), Runtime("eager"))
            rows = runner.start([replace(one, seed=seed) for seed, one in enumerate(2 * requests()[:1])])
            assert bool(rows.leaders) == (cache in LEAD), cache


def test_a_server_queues_answers_of_a_request_together() -> None:
    """Whose prompt is longer than what may join at once: eight answers take one forward of it."""
    name = "tiny-llada"
    scheduler = Scheduler(bundle(name), "eager", Limits(max_prefill_tokens=64))
    parts, clients = chosen(Combination("static", "fixed", "dual", model=name)), [Client() for _ in range(8)]
    for seed, client in enumerate(clients):
        request = Request.answer([7, 3, 41, 9] * 20, 8, bundle(name).ids.mask or 0, seed)
        scheduler.submit(job(request, parts), client)
    while not all(client.ended.is_set() for client in clients):
        scheduler.step()
    taken = [client.last.result.query_tokens for client in clients]
    assert taken == [taken[0], *[taken[0] - 88] * 7]
