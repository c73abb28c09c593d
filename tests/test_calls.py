"""A forward as several calls of the network: which rows go together, and that what is counted is what ran."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from harness import Combination, full, model, turns

from dllm import Decoder, load
from dllm.cache.calls import grouped
from dllm.canvas import Request

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
    found = grouped(widths, price)
    assert sorted(row for rows in found for row in rows) == list(range(len(widths)))
    assert price_of(found, widths, price) == min(
        price_of(other, widths, price) for other in partitions(list(range(len(widths))))
    )


def test_rows_without_columns_are_in_no_call() -> None:
    assert grouped([8, 0, 8, 90], 16) == [[3], [0, 2]]
    assert grouped([0, 0], 16) == [[0, 1]]


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
        ("confidence", "none", "tiny-llada"), ("confidence", "prefix", "tiny-dream"), ("eb", "dual", "tiny-llada"),
        ("wino", "dual", "tiny-llada"), ("freedave", "dual", "tiny-dream"), ("ete", "prefix", "tiny-llada"),
        ("confidence", "dkv", "tiny-llada"), ("confidence", "window", "tiny-dream"), ("eb", "elastic", "tiny-dream"),
        ("confidence", "finished", "sdar_b4"), ("confidence", "recap", "tiny-llada"),
    )
]  # fmt: skip


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


def shuffles(count: int) -> list[Any]:
    rng = random.Random(5)
    return [
        f"Shuffle the list:\n[{', '.join(json_name(name) for name in rng.sample(NAMES, rng.randint(3, 8)))}]"
        for _ in range(count)
    ]


def json_name(name: str) -> str:
    return f'"{name}"'


LONG = [(name, cache, most) for name in ("mini-llada", "mini-dream")
        for cache, most in (("dual", 1.1), ("prefix", 1.2), ("none", 1.1), ("window", 1.1))]  # fmt: skip


@pytest.mark.parametrize(("name", "cache", "most"), LONG if full() else [("mini-llada", "dual", 1.1)])
def test_a_batch_computes_little_that_nobody_asked_for(name: str, cache: str, most: float) -> None:
    """Before calls of their own, rows that opened a block made all others as wide: 1.5 at 8 rows under dual."""
    network, asked = load(name), []
    for rows in (1, 4, 16) if full() else (1, 8):
        decoder = Decoder(network, "confidence", cache=cache, eos="keep", gen_length=64, batch_size=rows)
        found = decoder(shuffles(16 if full() else 8))
        asked.append(sum(one.query_tokens for one in found))
        assert sum(one.computed_tokens for one in found) <= most * asked[-1]
    assert len(set(asked)) == 1, "what rows ask for does not depend on the batch"
