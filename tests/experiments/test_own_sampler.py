"""The comparison of scout with the published rules: who is chosen by what, and what is said of the difference."""

from __future__ import annotations

from collections import Counter

from harness import of_noise

from dllm import Result, part
from dllm.compose.parts import choices
from dllm.tasks.mini import tasks as mini
from experiments.compare.choosing import Column, Place, Pool, saving
from experiments.compare.own_sampler import Bench, methods


def column(method: str, setting: str, nfe: list[int], right: list[float]) -> Column:
    rows = [Result([1], [2], "", [2], count, 4 * count, 1.0, "eos", 0, [1]) for count in nfe]
    return Column(method, setting, rows, right, 1.0)


def bench(*columns: Column) -> Bench:
    """Four items of two tasks, two in each half, without a model."""
    out = object.__new__(Bench)
    out.items = [item for task in mini.SHORT_ANSWERS[:2] for item in mini.generate(task, 1, 2)]
    places = [Place(1, half) for half in (0, 1, 0, 1)]
    out.pool = Pool(places, column("static", "one token", [8] * 4, [1.0] * 4), columns)
    out.oracle = column("oracle", "told the answer", [1, 2, 1, 2], [1.0] * 4)
    return out


def test_single_splits_and_their_spread() -> None:
    """Two items a half, two halves of one seed: each half shows what the other chose."""
    pool = bench(
        column("a", "fast here", [2, 9, 2, 9], [1.0] * 4), column("a", "fast there", [4, 3, 4, 3], [1.0] * 4),
        column("**scout**", "only", [2, 2, 2, 2], [1.0, 1.0, 0.0, 1.0]),
    ).pool  # fmt: skip
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in pool.splits().splitlines()[2:]]
    assert lines[0] == ["seed 1, first half", "a: fast there", "+0.0", "50.0 % at -50.0 points"]
    assert lines[1][1:] == ["a: fast here", "+0.0", "77.8 % at +0.0 points"]
    assert lines[2][3] == "63.9 %, 19.6"
    drawn = pool.shown([1, 3], [0, 2])
    assert (drawn.best.setting, drawn.fewer["**scout**"]) == ("fast there", (50.0, -50.0))
    assert [line.split("|")[1].strip() for line in pool.sizes().splitlines()[2:]] == ["1", "2"]
    wrong = Pool(pool.places, pool.static, [column("b", "wrong", [1] * 4, [0.0] * 4)])
    assert wrong.shown([0], [1]).lost == 100  # nobody scores enough, so the best score counts


def test_a_setting_is_chosen_by_one_half_and_shown_on_the_other() -> None:
    found = bench(
        column("a", "fast here", [2, 9, 2, 9], [1.0] * 4), column("a", "fast there", [4, 3, 4, 3], [1.0] * 4),
        column("b", "wrong there", [3, 2, 3, 2], [1.0, 0.0, 1.0, 1.0]),
        column("**scout**", "only", [2, 2, 2, 2], [1.0] * 4),
    )  # fmt: skip
    for half, fast in enumerate(("fast here", "fast there")):
        assert found.pool.chosen(found.pool.of(half))["a"].setting == fast
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in found.table(0).splitlines()[2:]]
    shown = {line[0]: line for line in lines}
    # By the second half b scores too little, so a is the best there; its four forwards here are twice scout's.
    assert shown["a"][1:5] == ["fast there", "100.0", "the best published", "4.00"]
    assert shown["**scout**"][4:8] == ["2.00", "50.0 % ±0.0", "0.500", "4.0"]
    assert shown["b"][2] == "100.0" and [line[0] for line in lines] == ["oracle", "**scout**", "b", "a", "static"]


def test_the_interval_of_a_saving_is_that_of_paired_items() -> None:
    assert saving([2, 4, 6], [4, 8, 12]) == "50.0 % ±0.0"  # every item saves alike
    # What is left of 1, 1, 1 without 3/4 of 1, 2, 1 is 1/4, -1/2, 1/4: squares that sum to 0.375.
    assert saving([1, 1, 1], [1, 2, 1]) == f"25.0 % ±{100 * 1.96 * (0.375 / 2 / 3) ** 0.5 / (4 / 3):.1f}"


def test_every_sampler_that_ships_takes_part_with_settings_that_differ() -> None:
    found = list(methods())
    assert len({(method, words) for method, words, *_ in found}) == len(found) > 100
    needy = {"flash_verify", "linear_spec"}  # of its own cache
    assert {rule for _, _, rule, _ in found} == set(choices("sampler")) - {"oracle"} - needy - of_noise()
    assert min(Counter(method for method, *_ in found).values()) > 1  # nobody at its defaults alone
    for _, _, rule, options in found:
        assert part("sampler", rule, **options)


def test_freedave_meets_every_rule_that_scout_meets() -> None:
    inner = {
        word: {words.partition(" over ")[2] for _, words, rule, _ in methods() if rule == word}
        for word in ("scout", "freedave")
    }
    assert inner["scout"] < inner["freedave"] and len(inner["scout"]) == 5
