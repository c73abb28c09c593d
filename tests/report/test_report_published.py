"""A paper's figures in the report: beside ours, never among them, and never without saying whether they compare."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from dllm.parts import composed, plain_config, published_table, write_report
from tests.report.report_cells import cell, points, row, stored

FACTOR = ["experiment=published/factor"]


def test_the_report_shows_ours_beside_theirs(tmp_path: Path) -> None:
    cell(tmp_path / "sweep" / "a", FACTOR, {"copy": [1, 0]}, 4)
    cell(tmp_path / "sweep" / "b", ["sampler=static"], {"copy": [1, 1]}, 8)
    page = write_report([tmp_path / "sweep"], tmp_path / "out")
    heads, ours, theirs = csv.reader((tmp_path / "out" / "published-llada-8b-instruct.csv").open())
    ours_by, theirs_by = dict(zip(heads, ours, strict=True)), dict(zip(heads, theirs, strict=True))
    assert [ours_by[head] for head in ("whose", "score", "forwards", "tokens / forward")] == ["ours", "50", "4", "1"]
    assert (theirs_by["whose"], theirs_by["score"], theirs_by["tokens / s"]) == ("published", "78.1", "96")
    assert theirs_by["hardware"] == "one H100" and "arXiv 2606.02955" in theirs_by["from"]
    assert (ours_by["low"], ours_by["high"], theirs_by["low"]) == ("9.453", "90.55", "")
    reason = "not comparable: these settings differ: task=parallelbench, not gsm8k"
    assert theirs_by["verdict"] == reason
    for text in (page.read_text(), (tmp_path / "out" / "report.md").read_text()):
        assert "llada-8b-instruct: Published figures" in text and reason in text
    assert not list((tmp_path / "out").glob("published-mini-llada*")), "only cells of a published setting have figures"


def test_a_demo_model_is_told_by_its_width(tmp_path: Path) -> None:
    made = cell(tmp_path / "a", FACTOR, {"copy": [1]}, 4)
    made.environment["width"] = 128  # type: ignore[index]
    found = published_table(points(made))
    assert found is not None and "a demo model, 128 wide" in found.rows[1][found.heads.index("verdict")]


def test_a_method_without_figures_says_so(tmp_path: Path) -> None:
    found = published_table(points(cell(tmp_path / "a", ["experiment=published/credit"], {"copy": [1]}, 4)))
    assert found is not None
    theirs = found.rows[1]
    assert "no figures are published" in theirs and "78.1" not in theirs and "5.48 times" in " ".join(theirs)


@pytest.mark.parametrize(
    ("right", "verdict"),
    [
        (780, "reproduces: 78.1 is inside 75.3 to 80.5"),  # Wilson's interval, by hand
        (700, "differs: 78.1 is outside 67.1 to 72.8"),
    ],
)
def test_the_same_settings_reproduce_a_score_or_differ(tmp_path: Path, right: int, verdict: str) -> None:
    config = plain_config(composed(FACTOR))
    rows = [row("gsm8k", number, float(number < right), 4) for number in range(1000)]
    table = published_table(points(stored(tmp_path / "a", config, rows)))
    assert table is not None
    assert table.rows[1][table.heads.index("verdict")] == verdict


def test_answers_without_a_score_reproduce_nothing(tmp_path: Path) -> None:
    made = stored(tmp_path / "a", plain_config(composed(FACTOR)), [row("gsm8k", 0, None, 4)])
    table = published_table(points(made))
    assert table is not None and "our score is missing" in table.rows[1][table.heads.index("verdict")]
