"""Recorded facts, replayed; and that what is not replayed is a failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from constraints import PARTS, main

FILE = Path(__file__).parents[1] / "data" / "goldens" / "constrained.json"
DATA = json.loads(FILE.read_text(encoding="utf-8"))
CASE = DATA["sets"][0]
TURNED = [{**asked, "feasible": not asked["feasible"]} for asked in CASE["together"]]


@pytest.mark.parametrize("part", PARTS)
def test_every_recorded_case_is_equal(part: str) -> None:
    assert [PARTS[part](case) for case in DATA[part]] == [None] * len(DATA[part])


@pytest.mark.parametrize(
    ("part", "cases", "line", "words"),
    [
        ("sets", [CASE, {**CASE, "fewest": 0, "best": None}], "sets: 1 of 2", "sets 1: fewest, best differ"),
        ("sets", [{**CASE, "allowed": {}}, {**CASE, "allowed": {}}], "sets: 0 of 2", "sets everywhere: allowed differ"),
        ("sets", [{**CASE, "fillings": 35}], "sets: 0 of 1", "fillings differ"),
        ("sets", [{**CASE, "feasible": False, "together": TURNED}], "sets: 0 of 1", "feasible, together differ"),
        ("sets", [{**CASE, "best_logp": 0.0}], "sets: 0 of 1", "best_logp differ"),
        ("sets", [{**CASE, "later": 1}], "sets: 0 of 1", "later cannot be compared here"),
        ("sets", [{**CASE, "language": {"kind": "latex"}}], "sets: 0 of 1", "language=latex is unknown here"),
        ("sets", [{**CASE, "language": {"kind": "regex", "pattern": "("}}], "sets: 0 of 1", "it is refused"),
        ("sets", [], "sets: 0 of 1", "it has no cases"),
        ("later", [CASE], "later: 0 of 1", "later everywhere: this part is unknown here"),
    ],
)
def test_what_is_not_equal_or_not_replayed_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, cases: list[Any], line: str, words: str
) -> None:
    file = tmp_path / "golden.json"
    file.write_text(json.dumps({"method": "constrained", part: cases}))
    assert main([str(file)]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == f"{line} cases equal" and words in err


def test_equal_files_exit_with_zero(tmp_path: Path) -> None:
    (tmp_path / "golden.json").write_text(json.dumps({"method": "constrained", "sets": [CASE]}))
    assert main([str(tmp_path / "golden.json")]) == 0
