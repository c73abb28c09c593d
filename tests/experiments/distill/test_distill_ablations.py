"""The students that show what the loss is made of: their options, the teacher's answers, the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.distill import ablations, decoding
from tests.experiments.distill.conftest import options


def test_students_share_the_teachers_answers_and_differ_in_their_loss(
    tiny: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, real = [], decoding.teacher
    monkeypatch.setattr(decoding, "teacher", lambda model, recipe: (asked.append(recipe.beta), real(model, recipe))[1])
    given = [*options(tiny, data, tmp_path / "out"), "steps=2"]
    assert ablations.main([*given, "--only", "student"]) == 0
    capsys.readouterr()
    assert ablations.main(given) == 0
    lines = capsys.readouterr().out.splitlines()
    assert asked == [2.0], "one teacher answered once"
    recipes = {name: json.loads((tmp_path / "out" / name / "recipe.json").read_text()) for name in ablations.STUDENTS}
    assert [(one["beta"], one["certain"]) for one in recipes.values()] == [(2.0, "right"), (0, "right"), (2.0, "all")]
    assert lines[-6:-4] == ablations.HEAD.splitlines()
    before = json.loads((tmp_path / "out" / "student" / "report.json").read_text())["before"]
    assert lines[-4].startswith(f"| teacher | {before['forwards'][0]:.1f} ±{before['forwards'][1]:.1f} | nan")
    capsys.readouterr()
    assert ablations.main([*given, "batch=2"]) == 2 and "begun with batch=4, not 2" in capsys.readouterr().err


def test_a_row_has_means_with_intervals() -> None:
    found = {"forwards": (6.25, 0.5), "equal": (0.5, 0.1), "entropy": (0.125, 0.01), "score": (0.9, 0.02)}
    wanted = "| no entropy term (`beta=0`) | 6.2 ±0.5 | 90 ±2 | 0.12 ±0.01 | 50 ±10 |"
    assert ablations.row("no-entropy", found) == wanted
