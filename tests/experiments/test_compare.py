"""Rounding, and free beside constrained answers."""

from __future__ import annotations

import re

import pytest
import torch

from dllm.parts import narrowed, widened
from experiments.compare import constrained_tasks, rounding
from experiments.compare.rounding import ROUNDINGS, extremes, least_squares


def test_weights_on_sixteen_steps_are_met() -> None:
    groups = (torch.arange(64) % 16).view(1, 2, 32) * 0.25 - 3.0
    for how in (extremes, least_squares):
        torch.testing.assert_close(how(groups, groups[0]), groups)
    assert (ROUNDINGS["scale, 32"][0](groups, groups[0]) - groups).abs().max() > 0.1, "a scale alone cannot"


def test_least_squares_leave_less_than_the_extremes_by_the_measure_that_they_are_given() -> None:
    noise = torch.Generator().manual_seed(0)
    groups, columns = torch.randn(40, 4, 32, generator=noise), torch.rand(4, 32, generator=noise) ** 4
    plain, calibrated = (least_squares(groups, columns, flag) - groups for flag in (False, True))
    assert plain.square().sum() < 0.9 * (extremes(groups, columns) - groups).square().sum()
    assert (columns * calibrated.square()).sum() < 0.9 * (columns * plain.square()).sum()


def test_the_extremes_are_what_int4_stores() -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    found = extremes(weight.unflatten(-1, (-1, 32)), weight[0]).flatten(1)
    torch.testing.assert_close(widened(*narrowed(weight, 4), torch.float32), found, rtol=0, atol=1e-5)


def test_both_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    few = {name: ROUNDINGS[name] for name in ("scale, 128 columns", "least squares, calibrated, 32")}
    monkeypatch.setattr(rounding, "ROUNDINGS", few)
    monkeypatch.setattr(rounding, "KINDS", ("int8",))
    monkeypatch.setattr(rounding, "HEADS", (("int8", "int8"),))
    assert rounding.main(["mini-llada", "--count", "1"]) == 0
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    found = {cells[0]: [float(cell.split()[0]) for cell in cells[1:]] for cells in lines if cells[1][0].isdigit()}
    assert found["float32"][:2] == [0, 100] and found["int8"][0] < found["least squares, calibrated, 32"][0] < 30
    assert found["int8"][1] > 97 and found["int8"][0] < found["int8, head int8"][0] < 5
    assert rounding.main(["nothing/at/all"]) == 2


def test_constrained_answers_are_all_valid_in_as_many_forwards(capsys: pytest.CaptureFixture[str]) -> None:
    assert constrained_tasks.main(["mini-llada", "--tasks", "records", "replace_random", "--count=2"]) == 0
    heading, *lines = capsys.readouterr().out.split("\n\n")
    assert heading == "### mini-llada, free and constrained"
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines[0].splitlines()]
    tasks = ("records", "replace_random")
    assert [row[0] for row in rows[2:]] == [f"{task}, {k}" for task in tasks for k in (1, 4, 32)]
    assert all(row[4] == "100" and row[3] == row[6] for row in rows[2:]) and {row[5] for row in rows[5:]} == {"100"}


def test_the_constraints_are_the_right_answers() -> None:
    names = {"input": ["Ada", "Bob", "Eve"], "word": "Kai", "symbols": ["A", "B", "C", "D"], "records": [{}, {}]}
    squares = constrained_tasks.squares(names).options  # type: ignore[attr-defined]
    assert len(squares) == len(set(squares)) == 576
    assert len(constrained_tasks.shuffles(names).options) == 5  # type: ignore[attr-defined]
    for task in ("shuffle", "replace_random", "latin_square"):
        for text in constrained_tasks.CONSTRAINTS[task](names).options[:50]:  # type: ignore[attr-defined]
            assert constrained_tasks.suite.judge(task, names, text)["score"] == 1
    pattern = constrained_tasks.CONSTRAINTS["records"](names).schema  # type: ignore[attr-defined]
    assert re.search("'minItems': 2", str(pattern))
