"""A forward as several calls of the network: which rows go together, and that what is counted is what ran."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from harness import Combination, build, forward_of, full, model, parts_of, requests, turns, with_mask

from dllm import Decoder, UserError, load
from dllm.parts import (
    DKV,
    ROWS_PER_CALL,
    Canvas,
    DKVGreedy,
    Elastic,
    FullLength,
    HiddenStates,
    Network,
    Recap,
    Request,
    Sampling,
    Setting,
    Transformer,
    Whole,
    Window,
    denoise,
    ranges_of,
    row_groups,
    validate,
)

NAMES = ["Kai", "Emma", "Hugo", "Ada", "Ben", "Cleo", "Dan", "Eva"]


def partitions(rows: list[int]) -> Iterator[list[list[int]]]:
    """All ways to put the rows into groups."""
    if not rows:
        yield []
        return
    first, *rest = rows
    for found in partitions(rest):
        yield [[first], *found]
        for at, group in enumerate(found):
            yield [*found[:at], [first, *group], *found[at + 1 :]]


def price_of(calls: list[list[int]], widths: list[int], price: int) -> int:
    return sum(len(rows) * max(widths[row] for row in rows) + price for rows in calls)


@pytest.mark.parametrize("seed", range(40))
def test_no_other_grouping_costs_less(seed: int) -> None:
    rng = random.Random(seed)
    widths = [rng.choice([1, 3, 8, 9, 16, 40, 160]) for _ in range(rng.randint(1, 7))]
    price = rng.choice([0, 5, 16, 256])
    found = row_groups(widths, price)
    assert sorted(row for rows in found for row in rows) == list(range(len(widths)))
    assert price_of(found, widths, price) == min(
        price_of(other, widths, price) for other in partitions(list(range(len(widths))))
    )


def test_rows_without_columns_are_in_no_call() -> None:
    assert row_groups([8, 0, 8, 90], 16) == [[3], [0, 2]]
    assert row_groups([0, 0], 16) == [[0, 1]]


def test_neighbours_are_ranges() -> None:
    assert ranges_of([0, 1, 2, 5, 7, 8]) == ((0, 3), (5, 6), (7, 9))
    assert ranges_of([4]) == ((4, 5),)


def mixed(number: int) -> list[Request]:
    """Rows of other lengths that open their blocks at different turns."""
    rng = random.Random(number)
    return [
        Request.answer([62, *(rng.randrange(1, 60) for _ in range(rng.randint(2, 20)))], rng.randint(9, 40), 60, row)
        for row in range(6)
    ]


COUNTED = [
    Combination(sampler, "fixed", cache, model=name)
    for sampler, cache, name in (
        ("confidence", "none", "tiny-llada"),
        ("confidence", "prefix", "tiny-dream"),
        ("eb", "dual", "tiny-llada"),
        ("wino", "dual", "tiny-llada"),
        ("freedave", "dual", "tiny-dream"),
        ("ete", "prefix", "tiny-llada"),
        ("confidence", "dkv", "tiny-llada"),
        ("confidence", "window", "tiny-dream"),
        ("eb", "elastic", "tiny-dream"),
        ("confidence", "finished", "sdar_b4"),
        ("confidence", "recap", "tiny-llada"),
        ("confidence", "d2cache", "tiny-dream"),
        ("confidence", "entropy", "tiny-llada"),
        ("confidence", "flash_dllm", "tiny-llada"),
    )
]


@pytest.mark.daily(6)
@pytest.mark.parametrize("combination", COUNTED, ids=str)
def test_the_rows_counted_are_those_that_ran(combination: Combination) -> None:
    ran: list[list[int]] = [[] for _ in model(combination.model).layers]
    handles = [
        layer.register_forward_pre_hook(
            lambda _, args, rows=rows: rows.append(args[0].shape[0] * args[0].shape[1])  # type: ignore[misc]
        )
        for layer, rows in zip(model(combination.model).layers, ran, strict=True)
    ]
    try:
        for turn in turns(combination, mixed(3)):
            work = turn.cost
            computed = work.computed.sum(0).expand(len(ran)).tolist()
            assert computed == [sum(rows) for rows in ran]
            assert bool((work.computed >= work.queries).all())
            for rows in ran:
                rows.clear()
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.daily(2)
@pytest.mark.parametrize("cache", ["dual", "finished", "prefix"])
def test_rows_of_more_candidates_widen_no_others(cache: str) -> None:
    """Rows of one batch have other numbers of candidates, and what is computed is what was asked for."""
    name = "tiny-a2d-bd3lm" if cache == "finished" else "tiny-llada"
    ragged = 0
    for turn in turns(Combination("scout", "fixed", cache, model=name), requests()):
        ragged += len(set(turn.tried_owner.row.bincount().tolist())) > 1
        assert torch.equal(turn.cost.computed, turn.cost.queries)
    assert ragged > 1


GUIDED, HOT = Sampling(guidance=1.0), Sampling(temperature=0.7, tempered=True)
STREAMED = [
    ("confidence", "none", "tiny-dream", Sampling()),
    ("confidence", "dual", "tiny-llada", GUIDED),
    ("confidence", "prefix", "tiny-dream", HOT),
    ("wino", "dual", "tiny-llada", Sampling()),
    ("freedave", "dual", "tiny-dream", Sampling()),
    ("ete", "prefix", "tiny-llada", Sampling()),
    ("confidence", "finished", "sdar_b4", Sampling()),
    ("credit", "window", "tiny-llada", Sampling()),
    ("confidence", "dual", "llada_moe", Sampling()),
    ("credit", "d2cache", "tiny-dream", Sampling()),
    ("credit", "flash_dllm", "tiny-llada", Sampling()),
]


@pytest.mark.daily(4)
@pytest.mark.parametrize(("sampler", "kv", "name", "sampling"), STREAMED, ids=lambda one: str(one)[:12])
def test_calls_in_one_stream_are_calls_apart(
    sampler: str, kv: str, name: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of other widths run in calls of their own, and every row scores what it scores in a call by itself."""
    monkeypatch.setitem(ROWS_PER_CALL, "cpu", 0)
    network = model(name)
    case = Combination(sampler, "whole" if kv in ("flash_dllm", "window") else "fixed", kv, model=name)
    several = 0
    # One after the other: of two generators in turns, the first to end would end inference mode for both.
    together, apart = (list(scored(case, network, runs, sampling)) for runs in (network, network.__call__))
    for one, other in zip(together, apart, strict=True):
        several += one.pop("calls") > 1
        other.pop("calls")
        for name, value in one.items():
            assert torch.allclose(value, other[name], rtol=0, atol=1e-12), name
    assert several > 1


def scored(case: Combination, network: Transformer, runs: Network, sampling: Sampling) -> Iterator[dict[str, Any]]:
    """Of each turn: how many calls it made, the tokens it proposed and their confidence. A network that is not the
    model itself runs call by call."""
    parts = parts_of(case, sampling)
    forward, began = replace(forward_of(network, parts, sampling), network=runs), list[int]()
    config = network.config
    batch = [with_mask(request, config.mask_id or 0) for request in mixed(3)]
    canvas = Canvas.of(batch, config.pad_id or 0, "cpu", config.attention.grid_at_zero, sampling.temperature)
    with torch.inference_mode(), patch.object(HiddenStates, "of", noted(began)):
        for turn in denoise(canvas, forward, parts):
            scores = turn.view.scores
            yield {"calls": began.pop(), "token": scores.token, "confidence": scores.confidence}


def noted(calls: list[int]) -> Any:
    """``HiddenStates.of``, noting how many calls it puts together."""
    original = HiddenStates.of

    def of(found: Any, *rest: Any) -> HiddenStates:
        calls.append(len(found))
        return original(found, *rest)

    return of


@pytest.mark.parametrize("kv", ["dual", "prefix", "none"])
def test_a_turn_runs_every_linear_layer_once(kv: str) -> None:
    """Rows that open a block while others do not made a second call, which read all weights again."""
    network, ran = model("tiny-llada"), list[str]()
    handles = [
        part.register_forward_hook(lambda *_, name=name: ran.append(name))  # type: ignore[misc]
        for name, part in network.layers.named_modules()
        if isinstance(part, torch.nn.Linear)
    ]
    try:
        widths = set()
        for turn in turns(Combination("confidence", "fixed", kv), mixed(3)):
            assert len(ran) == len(set(ran)) == len(handles)
            widths.add(len(set(turn.cost.computed.flatten().tolist())))
            ran.clear()
        assert max(widths) > 1, "no turn had rows of several widths"
    finally:
        for handle in handles:
            handle.remove()


def shuffles(count: int) -> list[Any]:
    rng = random.Random(5)
    return [
        f"Shuffle the list:\n[{', '.join(json_name(name) for name in rng.sample(NAMES, rng.randint(3, 8)))}]"
        for _ in range(count)
    ]


def json_name(name: str) -> str:
    return f'"{name}"'


LONG = [
    (name, cache, most)
    for name in ("mini-llada", "mini-dream")
    for cache, most in (("dual", 1.1), ("prefix", 1.2), ("none", 1.1), ("window", 1.1))
]


@pytest.mark.parametrize(("name", "cache", "most"), LONG if full() else [("mini-llada", "dual", 1.1)])
def test_a_batch_computes_little_that_nobody_asked_for(name: str, cache: str, most: float) -> None:
    """Before calls of their own, rows that opened a block made all others as wide: 1.5 at 8 rows under dual."""
    network, asked = load(name), []
    for rows in (1, 4, 16) if full() else (1, 8):
        decoder = Decoder(network, "confidence", cache=cache, eos="none", gen_length=64, batch_size=rows)
        found = decoder(shuffles(16 if full() else 8))
        asked.append(sum(one.query_tokens for one in found))
        assert sum(one.computed_tokens for one in found) <= most * asked[-1]
    assert len(set(asked)) == 1, "what rows ask for does not depend on the batch"


@pytest.mark.parametrize(
    ("combination", "way_out"),
    [
        (Combination("prophet", "fixed", "dual"), "cache=prefix"),
        (Combination("freedave", "fixed", "dkv"), "cache=dual"),
        (Combination("saber", "fixed", "dkv"), "cache=dual"),
        (Combination("confidence", "fixed", "dkv_pd"), "cache=dual"),
        (Combination("wino", "fixed", "elastic"), "cache=dual"),
        (Combination("confidence", "fixed", "dkv_greedy"), "sampler=order"),
        (Combination("order", "fixed", "dkv_greedy", model="tiny-dream"), "cache=dual"),
        (Combination("confidence", "fixed", "dual", "eotp"), "cache=prefix"),
        (Combination("confidence", "fixed", "dual", model="sdar_b4"), "cache=finished"),
        (Combination("confidence", "fixed", "dual", model="tiny-wedlm"), "known tokens before masks.*cache=finished"),
        (Combination("confidence", "fixed", "elastic", model="tiny-nbdiff"), "the block that is .*cache=finished"),
        (Combination("wino", "fixed", model="tiny-wedlm"), "sampler=wino computes extra queries"),
        (Combination("saber", "fixed", model="tiny-wedlm"), "sampler=saber scores committed tokens.*=confidence"),
        (Combination("ete", "fixed", model="tiny-nbdiff"), "sampler=ete tries .* one block at a time.*=confidence"),
        (Combination("confidence", "fixed", eos="eotp", model="tiny-nbdiff"), "what is after the open block"),
        (Combination("confidence", "tccf", model="tiny-nbdiff"), "blocks=tccf .* context-causal model.*blocks=fixed"),
        (Combination("confidence", "fixed", "finished"), "cache=dual"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_with_the_way_out(combination: Combination, way_out: str) -> None:
    with pytest.raises(UserError, match=way_out):
        list(turns(combination, requests()[:1]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Elastic(gamma=1.5), "cache.gamma=1.5"),
        (lambda: Elastic(gamma=-0.1), "first_layer=0 forces"),
        (lambda: Elastic(similarity="head"), "Did you mean 'heads'"),
        (lambda: Elastic(trigger="now"), "same_step, next_step"),
        (lambda: Elastic(window_length=0), "window_length=0"),
        (lambda: Elastic(first_layer=-1), "first_layer=-1"),
        (lambda: Window(refresh_interval=0), "refresh_interval=0 must be at least 1"),
        (lambda: Window(queries="mask"), "Did you mean 'masks'"),
        (lambda: DKV(0), "refresh_interval=0 must be at least 1"),
        (lambda: DKVGreedy(0), "refresh_interval=0 must be at least 1"),
        (lambda: DKVGreedy(window=-1), "window=-1"),
        (lambda: Recap(local_steps=-1), "local_steps=-1"),
        (lambda: Recap(start_fraction=2), "start_fraction"),
        (lambda: Recap(targets="blocks"), "block, all_masked"),
    ],
)
def test_options_that_cannot_work_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_a_window_that_would_strand_its_queries_is_refused() -> None:
    setting = Setting(model("tiny-llada").config, Whole(), 128)
    sampler, eos = build("sampler", "confidence"), FullLength()
    validate(setting, sampler, Window(16, 48, 32), eos)
    with pytest.raises(UserError, match="Set cache.window_tokens=48"):
        validate(setting, sampler, Window(16, 47, 32), eos)
    validate(replace(setting, gen_length=32), sampler, Window(16, 32, 100), eos)  # the answer ends before
