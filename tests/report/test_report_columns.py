"""``dllm report --columns``: what stands beside a line, and its figures by hand."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from dllm import Result, UserError
from dllm.parts import HEADS, beside_of, column_tables, line_names, ratio, run_report, task_cells, title
from experiments.bench.wedlm import Way
from tests.report.report_cells import cell, points, row, stored

FOUR = {"copy": [1, 1], "shuffle": [1, 0]}


def lines(told: str) -> dict[str, list[str]]:
    """The cells of each line, by its name."""
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in told.splitlines() if line[:1] == "|"]
    return {name: cells for name, *cells in rows}


def of_two(one: Any, base: Any) -> str:
    """A column of a package."""
    return f"{one.measures.nfe:g} beside {base.measures.nfe:g}"


def test_every_figure_by_hand(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four samples of 4 useful tokens and 8 positions: 8 forwards each, 2 with four at once, 4 with a threshold."""
    words = ["score", "nfe", "tpf", "fewer", "queries", "queries_share", "flops_share", "useful", "forced"]
    run_report([str(sweep), "--columns", *words, "--against", "sampler=static", "sampler.per_step=1"])
    told = capsys.readouterr().out
    found = lines(told)
    assert told.startswith("### sweep: mini-llada, 4 items\n\n| setting | score | NFE | TPF | forwards saved |")
    assert found["static, per step=1"][1:] == ["8.0 ±0.0", "0.50 ±0.00", "", "64", "100 %", "100 %", "6.2 %", "0 %"]
    fast = ["2.0 ±0.0", "2.00 ±0.00", "75.0 % ±0.0", "16", "25 %", "100 %", "25.0 %", "0 %"]
    assert found["static, per step=4"][1:] == fast and found["static, per step=4"][0].startswith("50 (")
    assert not (sweep / "report").exists()


def test_late_commits_are_a_share_of_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """3 of 8; rows of an older version leave an empty cell."""
    cell(tmp_path / "counted", ["sampler=static"], {"sort": [1, 1]}, 8, late=[0, 1, 0, 1, 1, 0, 0, 0])
    cell(tmp_path / "older", ["sampler=eb"], {"sort": [1, 1]}, 8)
    run_report([str(tmp_path), "--columns", "late"])
    assert lines(capsys.readouterr().out) == {"setting": ["late"], "---": ["---:"], "static": ["38 %"], "eb": []}


def test_columns_of_the_oracle_and_of_a_package(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = f"{__name__}.of_two"
    run_report(
        [str(sweep), "--columns", "oracle", "lossless", "same", "difference", own, "--against", "sampler=oracle"]
    )
    found = lines(capsys.readouterr().out)
    assert found["setting"] == [
        "oracle / NFE",
        "lossless minimum / NFE",
        "same answers",
        "score less that beside",
        "of two",
    ]
    assert found["confidence"][:3] == ["0.50", "0.75", "100 (51-100)"]
    assert found["confidence"][3].startswith("-25.0 (-") and found["oracle"][3:] == ["", "2 beside 2"]
    assert found["static, per step=4"][4] == "2 beside 2"


def test_what_differs_least_stands_beside(tmp_path: Path) -> None:
    """Each cache beside none in its own blocks, each threshold beside the one that is named."""
    cells = [
        cell(tmp_path / f"{cache}-{length}", [f"cache={cache}", f"blocks.block_length={length}"], FOUR, 4)
        for cache in ("none", "dual")
        for length in (4, 8)
    ]
    found = points(*cells)
    for one in found:
        base = beside_of(one, found, ["cache=none"])
        assert base is not None and base.config["cache"] == found[-1].config["cache"]
        assert base.config["blocks"]["block_length"] == one.config["blocks"]["block_length"]
    assert beside_of(found[0], found, []) is None
    with pytest.raises(UserError, match="--against blocks=fixed blocks.block_length=4 means .*; .*Name more settings"):
        beside_of(
            points(cell(tmp_path / "x", ["cache=prefix"], FOUR, 4))[0], found, ["blocks=fixed", "blocks.block_length=4"]
        )


def test_what_no_line_can_have_is_refused(sweep: Path) -> None:
    for words, sentence in (
        (["--columns", "scor"], "scor must be one of score, .*Did you mean 'score'"),
        (["--columns", "no_such_package.column"], "no_such_package.column cannot be imported"),
        (["--columns", "score", "--against", "cache=dual"], "--against cache=dual is not a setting here"),
    ):
        with pytest.raises(UserError, match=sentence):
            run_report([str(sweep), *words])


def test_lines_are_called_by_what_they_do_not_share(tmp_path: Path) -> None:
    cells = [
        cell(tmp_path / f"{at}", [f"sampler.threshold={at}", "blocks.block_length=8"], FOUR, 4) for at in (0.5, 0.7)
    ]
    found = points(*cells)
    assert line_names(found) == ["confidence, threshold=0.5", "confidence, threshold=0.7"]
    assert line_names(found[:1]) == ["confidence, threshold=0.5, block length=8"]
    assert title(found) == f"{tmp_path.name}: mini-llada, 4 items"


def test_a_ratio_and_its_interval_are_those_of_resampled_items() -> None:
    """Twice the same answers to each item say nothing more."""
    draw = random.Random(0)
    rows = [row("copy", at, 1, draw.randrange(1, 9)) | {"useful_tokens": draw.randrange(1, 20)} for at in range(200)]
    found = []
    for _ in range(1000):
        some = draw.choices(rows, k=len(rows))
        found.append(sum(one["useful_tokens"] for one in some) / sum(one["nfe"] for one in some))
    value, half = ratio(rows, "useful_tokens", "nfe")
    assert value == pytest.approx(fmean(found), abs=0.02) and half == pytest.approx(1.96 * stdev(found), rel=0.1)
    assert ratio(rows + rows, "useful_tokens", "nfe") == pytest.approx((value, half))
    assert ratio([row("copy", 0, 1, 1), row("copy", 1, 1, 3)], "nfe") == (2, pytest.approx(1.96))


def test_all_tables_print_one_number_of_tokens_per_forward(tmp_path: Path) -> None:
    """10 tokens in 7 forwards; the mean of the two ratios, 1.90, is another number."""
    rows = [row("copy", 0, 1, 5), row("copy", 1, 1, 2) | {"useful_tokens": 6}]
    results = [
        Result([1], [5] * one["useful_tokens"], "", [5] * 8, one["nfe"], 40, 0.1, "eos", 0, [1] * 8) for one in rows
    ]
    way = Way("it", lambda _: results[0], results, 1.0, 1.0)
    made = points(stored(tmp_path / "a", cell(tmp_path / "b", [], FOUR, 2).config, rows))
    told = [*lines(column_tables(made, ["tpf"])).values()][-1][0]
    assert [told.split()[0], task_cells(rows)[HEADS.index("TPF")], way.cells(way)[2]] == ["1.43"] * 3
