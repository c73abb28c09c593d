"""Paired differences: against a published interval, closed forms, and draws with a known mean."""

from __future__ import annotations

import random
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

import pytest

from dllm.parts import Method, PairedDifference, aup_intervals, mark, mean_aup, methods, paired_difference
from tests.report.report_cells import cell, points

Chances = tuple[float, float]  # that an item is lost, that it is won


def test_the_interval_of_right_and_wrong_answers_is_the_published_one() -> None:
    """The example of ``ci.prop.ps`` of the R package statpsych, which its author, D. Bonett, gives with its result."""
    found = paired_difference([[0.0] * (12 + 6) + [-1.0] * 4 + [1.0] * 26], z=1.959964)
    assert (found.mean, found.items) == (pytest.approx(22 / 48), 48)
    assert (found.low, found.high) == pytest.approx((0.2548067, 0.6251933), abs=1e-7)


def test_of_many_items_it_is_the_interval_of_a_mean() -> None:
    draw = random.Random(1)
    values = [draw.triangular(-1, 1, 0.4) for _ in range(20_000)]
    found, half = paired_difference([values]), 1.96 * stdev(values) / sqrt(len(values))
    assert (found.low, found.high) == pytest.approx((fmean(values) - half, fmean(values) + half), abs=1e-4)


def test_answers_that_all_agree_are_no_proof_of_equality() -> None:
    found, half = paired_difference([[0.0] * 16]), 1.96 * sqrt(2) / 18  # of 18 items one lost, one won
    assert found.mean == 0 and (found.low, found.high) == pytest.approx((-half, half))
    lost = paired_difference([[-1.0] * 16])
    assert lost.low == lost.mean == -1 and -0.8 < lost.high < -0.6


def test_one_item_says_next_to_nothing() -> None:
    found = paired_difference([[1.0]])
    assert found.low < -0.5 and found.high == 1
    assert paired_difference([[1.0], [0.0] * 9]).low < 0


def test_sub_tasks_count_alike_and_what_tells_them_apart_is_no_chance() -> None:
    uneven = paired_difference([[1.0] * 2, [0.0] * 40])
    assert uneven.mean == 0.5 and uneven.items == 42
    apart, mixed = [[-1.0] * 50, [0.0] * 50], [[-1.0, 0.0] * 25] * 2
    assert paired_difference(apart).mean == paired_difference(mixed).mean == -0.5
    # By hand: no variance within, 100 items, 2 added: sqrt((2 + 2 * 0.25 * 100 / 102) / 102 / 102) around -50 / 102.
    half = 1.96 * sqrt(2 + 50 / 102) / 102
    found = paired_difference(apart)
    assert (found.low, found.high) == pytest.approx((-50 / 102 - half, -50 / 102 + half))
    assert paired_difference(mixed).high - paired_difference(mixed).low > 3 * (found.high - found.low)


@pytest.mark.parametrize(
    ("low", "high", "star"), [(0.1, 0.3, "*"), (-0.3, -0.1, "*"), (-0.1, 0.3, ""), (0.0, 0.3, ""), (-0.3, 0.0, "")]
)
def test_a_star_marks_an_interval_without_0(low: float, high: float, star: str) -> None:
    assert mark(PairedDifference((low + high) / 2, low, high, 9)) == star and mark(None) == ""


@pytest.mark.parametrize("graded", [False, True], ids=["right or wrong", "graded"])
@pytest.mark.parametrize(
    "chances",
    [[(0.02, 0.02)] * 6, [(0.0, 0.0)] * 4 + [(0.9, 0.0)] * 2, [(0.3, 0.05)] * 6, [(0.2, 0.4)]],
    ids=["equal", "two lost", "all worse", "one better"],
)
def test_it_holds_the_true_mean_as_often_as_it_says(chances: list[Chances], graded: bool) -> None:
    """Of 200 draws 95 % are 190; chance alone goes below 178 in one of 5,000."""
    draw = random.Random(f"{chances}{graded}")
    true = fmean(won - lost for lost, won in chances) * (0.5 if graded else 1.0)

    def values(lost: float, won: float) -> list[float]:
        sides = draw.choices((-1.0, 0.0, 1.0), (lost, 1 - lost - won, won), k=16)
        return [side * draw.random() for side in sides] if graded else sides

    found = [paired_difference([values(*pair) for pair in chances]) for _ in range(200)]
    assert sum(one.low <= true <= one.high for one in found) >= 178


def curve(place: Path, scores: dict[str, list[float | None]], *overrides: str) -> list[Method]:
    return methods(points(cell(place, ["sampler=static", *overrides], scores, 8)))


def test_one_setting_has_the_interval_of_its_mean_score(tmp_path: Path) -> None:
    """AUP is then score times speed: 1.96 standard errors of a mean, which for 200 answers are 6.9 points."""
    found = curve(tmp_path / "a", {"copy": [1.0, 0.0] * 100})
    speed = mean_aup(found[0], found) / 50
    (ends,) = aup_intervals(found)
    assert ends is not None
    low, high = (end / speed for end in ends)
    assert low == pytest.approx(50 - 6.93, abs=0.8) and high == pytest.approx(50 + 6.93, abs=0.8)


def test_items_that_are_alike_leave_no_doubt(tmp_path: Path) -> None:
    found = curve(tmp_path / "a", {"copy": [1.0] * 5, "shuffle": [1.0] * 3})
    assert aup_intervals(found) == [pytest.approx((mean_aup(found[0], found),) * 2)]


def test_sub_tasks_are_drawn_apart_and_one_item_says_nothing(tmp_path: Path) -> None:
    """The mean of two sub-tasks with 200 answers each has an interval narrower by the root of two."""
    one = curve(tmp_path / "a", {"copy": [1.0, 0.0] * 100})
    two = curve(tmp_path / "b", {"copy": [1.0, 0.0] * 100, "shuffle": [1.0, 0.0] * 100})
    (wide,), (narrow,) = aup_intervals(one), aup_intervals(two)
    assert wide is not None and narrow is not None
    assert (wide[1] - wide[0]) / (narrow[1] - narrow[0]) == pytest.approx(2**0.5, rel=0.15)
    assert aup_intervals(curve(tmp_path / "c", {"copy": [1.0, 0.0], "shuffle": [1.0]})) == [None]
    assert aup_intervals([]) == []


def test_methods_of_the_same_answers_have_the_same_interval(tmp_path: Path) -> None:
    scores: dict[str, list[float | None]] = {"copy": [1.0, 0.0, None, 1.0]}
    same = [cell(tmp_path / name, [f"sampler={name}"], scores, 8) for name in ("static", "confidence")]
    one, other = aup_intervals(methods(points(*same)))
    assert one == other and one is not None and one[0] < one[1]
