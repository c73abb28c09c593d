"""Intervals of AUP, where what they should be is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from dllm.report.figures import mean_aup
from dllm.report.methods import Method, methods
from dllm.report.setting_tables import aup_intervals
from tests.report.report_cells import cell, points


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
