"""The table of free against constrained answers, on a demo model."""

from __future__ import annotations

import re

import pytest

from experiments.compare import constrained_tasks


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
