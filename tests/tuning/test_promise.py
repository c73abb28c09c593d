"""Choosing a setting with a promise: the record, closed forms, brute force, and a simulation with known losses."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import comb, sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from dllm.scoring import promise as module
from dllm.scoring.promise import Promise, binomial_tail, choose, front, least_items, split_items, survivors
from dllm.view.report.front_picture import draw_front
from tests.support.harness import full
from tests.tune import Numbers, main

ALLOWED = ALPHA = 0.05


def test_the_record_is_replayed_by_the_products_own_functions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tests/data/tuned.json"]) == 0
    assert capsys.readouterr().out == "12 of 12 cases equal\n"


def test_a_wrong_record_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_KEPT", 7)
    assert main(["tests/data/tuned.json"]) == 1


@pytest.mark.parametrize(
    ("ones", "count", "share"),
    [
        (0, 59, 0.05),
        (3, 100, 0.05),
        (0, 1, 0.5),
        (7, 1000, 0.02),
        (400, 1000, 0.375),
        (12, 12, 0.3),
        (1, 2000, 0.01),
        (3, 5, 0.9),
    ],
)
def test_the_binomial_tail_is_that_of_fractions(ones: int, count: int, share: float) -> None:
    part, whole = share.as_integer_ratio()
    tail = sum(comb(count, k) * part**k * (whole - part) ** (count - k) for k in range(ones + 1))
    assert binomial_tail(ones, count, share) == pytest.approx(float(Fraction(tail, whole**count)), rel=1e-12)


def test_losses_of_nothing_have_the_closed_form_and_59_items_are_the_least() -> None:
    promise = Promise(ALLOWED, ALPHA, binary=True)
    for count in (1, 58, 59, 300):
        assert promise.p_value([0] * count) == pytest.approx((1 - ALLOWED) ** count, rel=1e-12)
    assert promise.p_value([]) == 1.0
    assert promise.items_needed([0] * 20) == 59


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.02, 1 / 30])
def test_the_items_that_would_do_are_the_least(rate: float) -> None:
    enough = (n for n in range(1, 1001) if binomial_tail(int(np.ceil(rate * n)), n, ALLOWED) <= ALPHA)
    assert least_items(rate, ALLOWED, ALPHA) == next(enough)


def test_the_count_of_items_ends() -> None:
    assert least_items(0.0499999, ALLOWED, ALPHA, most=2000) is None


def test_no_number_of_items_does_where_the_measured_loss_is_not_below_the_allowed() -> None:
    assert Promise(0.05, binary=True).items_needed([1] + [0] * 19) is None
    assert Promise(0.05).items_needed([0.1, 0.0]) is None


def test_scores_repeat_until_the_test_passes() -> None:
    promise, losses = Promise(0.1), [0.0, 0.05, -0.1, 0.0] * 5
    count = promise.items_needed(losses)
    assert count is not None
    times = count // len(losses)
    assert promise.p_value(losses * times) <= promise.alpha < promise.p_value(losses * (times // 2))


def test_no_item_serves_twice() -> None:
    search, confirm = split_items(100, seed=3)
    assert (len(search), sorted(search + confirm)) == (33, list(range(100)))
    assert split_items(100, seed=3) == (search, confirm) != split_items(100, seed=4)


def test_a_drop_keeps_the_safest_and_the_fastest_of_the_allowed() -> None:
    losses = {k: 0.01 * k for k in range(20)}
    costs = {k: float(20 - k) for k in range(20)}
    assert survivors(range(20), losses, costs, 0.1) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert survivors(range(8), losses, costs, 0.0) == list(range(8))


def test_the_front_is_what_no_other_beats_in_both() -> None:
    random = np.random.default_rng(5)
    losses, costs = ({k: round(float(v), 1) for k, v in enumerate(random.random(30))} for _ in range(2))
    found = front(range(30), losses, costs)
    beaten = {
        k
        for k in range(30)
        for j in range(30)
        if (losses[j], costs[j], j) < (losses[k], costs[k], k) and losses[j] <= losses[k] and costs[j] <= costs[k]
    }
    assert set(found) == set(range(30)) - beaten
    assert [costs[k] for k in found] == sorted((costs[k] for k in found), reverse=True)


class Lacking(Numbers):
    """A table in which settings cannot be had."""

    def confirm(self, setting: int) -> None:  # type: ignore[override]
        return None


def test_a_setting_that_fails_while_it_is_tested_ends_the_tests() -> None:
    table = Lacking([[0.0] * 9, [0.0] * 9], [[0.0] * 99] * 2, [2.0, 1.0])
    choice = choose(table, 2, 9, Promise(ALLOWED, ALPHA, True))
    assert (choice.order, choice.tested, choice.chosen) == ((1,), (), None)


Draw = Callable[[np.random.Generator, np.ndarray, int], np.ndarray]


def _binary(random: np.random.Generator, means: np.ndarray, count: int) -> np.ndarray:
    return (random.random((len(means), count)) < means[:, None]).astype(float)


def _ternary(random: np.random.Generator, means: np.ndarray, count: int) -> np.ndarray:
    uniform, gain = random.random((len(means), count)), 0.04
    return np.where(uniform < gain, -1.0, np.where(uniform < 2 * gain + means[:, None], 1.0, 0.0))


def _graded(random: np.random.Generator, means: np.ndarray, count: int) -> np.ndarray:
    """Halves of -1, 0, 1 and 2 steps."""
    return (_binary(random, means, count) + _ternary(random, means, count)) / 2


def _spread(random: np.random.Generator) -> np.ndarray:
    return np.sort(random.beta(1, 12, 24))


def _edge(random: np.random.Generator) -> np.ndarray:
    return np.concatenate([np.full(12, ALLOWED * 1.02), np.full(12, ALLOWED * 0.3)])


def _sharp(random: np.random.Generator) -> np.ndarray:
    return np.full(8, ALLOWED * (1 + 1e-6))


@pytest.mark.parametrize(
    ("means_of", "draw"),
    [
        (_sharp, _binary),
        (_edge, _binary),
        (_spread, _binary),
        (_spread, _ternary),
        (_edge, _ternary),
        (_spread, _graded),
        (_edge, _graded),
        (_sharp, _graded),
    ],
)
def test_the_promise_fails_as_rarely_as_it_says(
    means_of: Callable[[np.random.Generator], np.ndarray], draw: Draw
) -> None:
    """450 items. Naive: the fastest setting whose mean loss on all items is at most what is allowed."""
    times, random, wrong, naive_wrong = (2000 if full() else 100), np.random.default_rng(11), 0, 0
    for _ in range(times):
        means = means_of(random)
        costs = random.permutation(np.sort(random.uniform(1, 10, len(means)))).tolist()
        losses = draw(random, means, 450)
        search, confirm = split_items(450, int(random.integers(1 << 30)))
        table = Numbers(losses[:, search].tolist(), losses[:, confirm].tolist(), costs)
        chosen = choose(table, len(means), len(search), Promise(ALLOWED, ALPHA, draw is _binary)).chosen
        wrong += chosen is not None and means[chosen] > ALLOWED
        allowed = [k for k in range(len(means)) if losses[k].mean() <= ALLOWED]
        naive_wrong += bool(allowed) and means[min(allowed, key=costs.__getitem__)] > ALLOWED
    if full():
        print(f"{means_of.__name__[1:]} {draw.__name__[1:]}: {wrong / times:.3f}, naive {naive_wrong / times:.3f}")
    assert wrong / times <= ALPHA + 3 * sqrt(ALPHA * (1 - ALPHA) / times)
    assert naive_wrong > wrong


def test_the_picture_shows_settings_at_their_cost_and_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, plot = dict[str, Any](), Axes.plot

    def listen(axis: Axes, *data: Any, **how: Any) -> Any:
        drawn[how.get("label") or (data[2] if len(data) == 3 else "line")] = data[:2]
        return plot(axis, *data, **how)

    monkeypatch.setattr(Axes, "plot", listen)
    points = [(0, 0.0, (0.0, 0.1), 32.0), (3, 0.04, (0.01, 0.08), 5.0)]
    choice = SimpleNamespace(order=[3], kept=[0, 3])
    draw_front(tmp_path / "front.png", points, choice, 3, 0.05, "forwards")  # type: ignore[arg-type]
    assert drawn["taken"] == (5.0, pytest.approx(4.0)) and drawn["reference"] == (32.0, 0.0)
    assert drawn["line"] == ((5.0,), (pytest.approx(4.0),)) and (tmp_path / "front.png").stat().st_size > 0
