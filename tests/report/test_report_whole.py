"""The report: its numbers against hand calculations, its files complete, its suites apart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dllm import UserError
from dllm.parts import (
    MACHINES,
    CellResults,
    Machine,
    ReportOptions,
    SettingResults,
    bits_bound,
    environment_stamp,
    methods,
    read_cells,
    run_report,
    warnings,
    wilson,
    write_report,
)
from dllm.view.report import figures, plots
from dllm.view.report import setting_tables as tables
from tests.report.report_cells import cell, points

Point = tuple[float, float]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """pyplot keeps every figure until it is closed, and warns of twenty."""
    yield
    plots.plt.close("all")


def test_aup_is_the_published_one() -> None:
    """The values of the leaderboard's own code, worked by hand from arXiv 2601.07568."""
    assert figures.aup([(1, 72.55)], 72.55) == pytest.approx(72.55)
    assert figures.aup([(1, 74.79), (2.77, 74.68)], 74.79) == pytest.approx(206.78, abs=0.01)
    assert figures.aup([(2.77, 74.68), (1, 74.79), (9, 60)], 74.79) == pytest.approx(206.78, abs=0.01)  # 60 is dropped
    assert figures.aup([(1, 0.0)], 0.0) == 0.0


def brute(points: Sequence[Point], level: float) -> float | None:
    """Walk along the polyline in small steps."""
    ordered, found = sorted(points), None
    for (x0, y0), (x1, y1) in zip(ordered, ordered[1:], strict=False):
        for part in range(10_001):
            if y0 + (y1 - y0) * part / 10_000 >= level - 1e-9:
                found = max(found or 0.0, x0 + (x1 - x0) * part / 10_000)
    return found


@pytest.mark.parametrize("level", [95, 90, 75, 70, 40])
def test_pbx_in_both_readings(level: float) -> None:
    points = [(1.0, 92.0), (2.0, 80.0), (4.0, 88.0), (8.0, 60.0)]
    assert figures.pb_discrete(points, level) == {95: None, 90: 1, 75: 4, 70: 4, 40: 8}[level]
    expected = brute(points, level)
    assert figures.pb_interpolated(points, level) == (None if expected is None else pytest.approx(expected, abs=1e-3))


def test_pareto_points_are_those_that_nothing_beats() -> None:
    points = [(1.0, 90.0), (2.0, 95.0), (2.0, 80.0), (3.0, 95.0), (4.0, 10.0), (4.0, 10.0)]
    assert figures.pareto(points) == [False, False, False, True, True, True]


def test_a_budget_is_what_the_rule_lets_pass() -> None:
    assert bits_bound({"_target_": "x.Confidence", "threshold": 0.9}, 3, 32) == pytest.approx(32 * -log2(0.9))
    assert bits_bound({"_target_": "x.Factor", "factor": 1.0}, 3, 32) == pytest.approx(3 * -log2(0.75))
    assert bits_bound({"_target_": "x.Factor", "factor": 2.0}, 1, 32) is None  # 1 - 2 / 2 = 0: anything passes
    assert bits_bound({"_target_": "x.Static"}, 3, 32) is None


def test_quality_is_the_mean_over_tasks_and_missing_scores_are_named(tmp_path: Path) -> None:
    (one,) = points(cell(tmp_path / "a", ["sampler=static"], {"copy": [1, 1, 0, 1], "shuffle": [None, None]}, 8))
    assert one.scores == {"lists/copy": 75.0} and one.quality == 75.0
    low, high = wilson(3, 4)
    assert one.interval == pytest.approx((100 * low, 100 * high))  # of one task it is Wilson's
    (line,) = tables.setting_table([one], tables.OUTCOMES).rows
    assert "lists/shuffle" in line and "6" in line
    (both,) = points(cell(tmp_path / "b", ["sampler=static"], {"copy": [1, 1, 1, 1], "shuffle": [0, 0]}, 8))
    assert both.quality == 50.0  # tasks count alike, however many samples they have


def test_methods_are_lines_over_their_numbers(sweep: Path) -> None:
    found = {method.name: [one.name for one in method.settings] for method in methods(points(*read_cells(sweep)[0]))}
    assert found == {"static": ["per step=1", "per step=4"], "confidence": ["defaults"], "oracle": ["defaults"]}


def test_distances_to_the_oracle_and_the_lossless_minimum(sweep: Path) -> None:
    settings = points(*read_cells(sweep)[0])
    found = {one.folders: figures.limits(one, settings) for one in settings}
    assert found["a"]["closeness"] == 2 / 8 and found["a"]["lossless"] == 3 / 8 and found["a"]["same"] == 100
    assert found["d"]["closeness"] == 1 and found["c"]["bits"] == 0.5
    assert found["c"]["budget"] == pytest.approx(100 * 0.5 / (8 * -log2(0.9)))
    mine, oracle = (next(one for one in settings if one.folders == name) for name in "ad")
    apart = replace(mine, rows=mine.rows[:1])
    alone = replace(oracle, rows=[row for row in oracle.rows if row["id"] != mine.rows[0]["id"]])
    assert figures.limits(apart, [apart, alone])["closeness"] is None  # cells under way share no sample yet
    other = [one for one in settings if one.folders != "d"]
    assert figures.limits(other[0], other)["closeness"] is None


@pytest.mark.usefixtures("vectors")
def test_the_report_is_complete_and_self_contained(sweep: Path) -> None:
    page = write_report([sweep], sweep / "report", ReportOptions("h200")).read_text()
    names = {file.name for file in (sweep / "report").iterdir()}
    kinds = ("curves", "aup", "table", "times", "limits", "tasks", "differences", "differences_by_task")
    pictures = ("quality-tpf", "quality-speed", "quality-flops", "tasks-mini-llada")
    assert names == {
        "report.html",
        "report.md",
        *(f"{name}.{suffix}" for name in pictures for suffix in ("png", "pdf", "svg")),
        *(f"{kind}-mini-llada.{suffix}" for kind in kinds for suffix in ("csv", "tex")),
    }
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert len(sources) == 4 and all(source.startswith("data:image/png;base64,") for source in sources)
    for word in ("This pair cannot work.", "PB90 interp.", "floor / time", "as one per step", "suite s"):
        assert word in page and word in (sweep / "report" / "report.md").read_text()
    header, *lines = (sweep / "report" / "table-mini-llada.csv").read_text().splitlines()
    assert header.startswith("method,setting,samples,score") and len(lines) == 4
    assert "static,per step=4,4,50.0" in "\n".join(lines)


BUSY = {"device": "cpu", "cpu_seconds": 0.1, "load": 2.0}  # of 0.1 s a forward
QUIET = {"device": "cpu", "cpu_seconds": 0.8, "load": 0.5}


def test_a_speed_of_a_busy_machine_is_marked_and_never_called_pareto_optimal(tmp_path: Path) -> None:
    slow, fast = points(
        cell(tmp_path / "a", ["sampler=static"], {"copy": [1, 1]}, 8, **QUIET),
        cell(tmp_path / "b", ["sampler=static", "sampler.per_step=4"], {"copy": [1, 1]}, 2, **BUSY),
    )
    assert (slow.measures.warning, fast.measures.warning) == ("", "wall time 2.0 x CPU time")
    speed, tpf = (lambda one: one.measures.speed), (lambda one: one.measures.tpf)
    assert plots.optimal([slow, fast], speed, is_speed=True) == [False, False]  # too low, and higher even so
    assert plots.optimal([slow, fast], tpf, is_speed=False) == [False, True]  # a count is no time
    head, quiet, busy = tables.speeds([slow, fast], None).csv().splitlines()
    assert head.endswith("wall / CPU,load,warning") and quiet.endswith(",1.00,0.50,")
    assert busy.endswith(",2.00,2.00,wall time 2.0 x CPU time")
    write_report([tmp_path], tmp_path / "report")
    said = "busy during 1 of 2 settings: their speeds are too low, and none is called Pareto-optimal for its speed"
    assert said in (tmp_path / "report" / "report.md").read_text()


def test_a_doubted_star_is_no_unit_of_speed(tmp_path: Path) -> None:
    cells = points(
        cell(tmp_path / "a", ["sampler=static"], {"copy": [1, 1]}, 8, **BUSY),
        cell(tmp_path / "b", ["sampler=confidence"], {"copy": [1, 1]}, 4, **QUIET),
    )
    for timed in (False, True):
        figure = plots.tradeoff(cells, lambda one: one.measures.speed, "speed", timed)
        (axis,) = (axis for axis in figure.axes if axis.get_title() == "mini-llada")
        assert len(axis.child_axes) == (0 if timed else 1)
        crosses = [line for line in axis.lines if line.get_marker() == "x"]
        assert [list(line.get_xdata()) for line in crosses] == ([[cells[0].measures.speed]] if timed else [])


@pytest.mark.parametrize(
    ("environment", "named", "said"),
    [
        ({"device": "cpu", "processor": "x86_64"}, "h200", "those of h200, and the times were taken on cpu (x86_64)"),
        ({"device": "cuda", "gpus": ["NVIDIA H200"]}, "h200", ""),
        ({"device": "cuda", "gpus": ["NVIDIA A100-SXM4-80GB"]}, "a100", ""),
        ({"device": "cuda", "gpus": ["NVIDIA L40S"]}, "l4", "those of l4, and the times were taken on NVIDIA L40S"),
        ({"device": "cpu", "gpus": ["NVIDIA L4"], "processor": "x"}, "l4", "and the times were taken on cpu (x)"),
    ],
)
def test_a_floor_of_another_machine_is_named_as_such(
    tmp_path: Path, environment: dict[str, Any], named: str, said: str
) -> None:
    (one,) = points(replace(cell(tmp_path / "a", ["sampler=static"], {"copy": [1, 1]}, 8), environment=environment))
    assert warnings([one], None) == []
    found = warnings([one], MACHINES[named])
    assert [said in sentence for sentence in found] == [True] * bool(said)


def test_ranks_share_a_floor(tmp_path: Path) -> None:
    """2 GFLOP a sample, at 1 GFLOP a second."""
    one, machine = cell(tmp_path / "a", ["sampler=static"], {"copy": [1, 1]}, 8), Machine("slow", 1e9, 1e9)
    floors = {n: tables.floor_of(points(replace(one, environment={"ranks": n}))[0], machine) for n in (1, 2, 4)}
    assert floors == {1: 2.0, 2: 1.0, 4: 0.5}
    (alone,) = points(replace(one, environment={}))
    assert tables.floor_of(alone, machine) == 2.0
    head, line = (row.split(",") for row in tables.speeds([alone], machine).csv().splitlines())
    assert alone.measures.seconds not in (0, 1)
    expected = 2.0 * alone.measures.samples / alone.measures.seconds
    assert float(dict(zip(head, line, strict=True))["floor / time"]) == pytest.approx(expected, abs=5e-4)


def test_this_machine_is_the_one_at_hand_only_if_it_ran_there(tmp_path: Path) -> None:
    here = json.loads(json.dumps(environment_stamp(torch.device("cpu"), torch.float32, 0)))
    one = cell(tmp_path / "a", ["sampler=static"], {"copy": [1, 1]}, 8)
    this = Machine("this cpu", 1e9, 1e9)
    assert warnings(points(replace(one, environment=here)), this) == []
    assert "two machines" in warnings(points(replace(one, environment={**here, "cores": 999})), this)[0]


def test_two_suites_are_never_in_one_table(sweep: Path) -> None:
    cell(sweep / "f", ["sampler=static"], {"copy": [0, 0]}, 8, data="other")
    write_report([sweep], sweep / "report")
    text = (sweep / "report" / "report.md").read_text()
    assert text.count("## parallelbench: suite s") == 2 and "data other" in text
    assert len((sweep / "report" / "table-mini-llada.csv").read_text().splitlines()) == 5
    assert len((sweep / "report" / "table-mini-llada-2.csv").read_text().splitlines()) == 2


def test_a_suite_that_nobody_could_judge_has_tables_only(tmp_path: Path) -> None:
    cell(tmp_path / "a", ["sampler=static"], {"copy": [None, None]}, 8)
    page = write_report([tmp_path], tmp_path / "report").read_text()
    assert "No score could be judged" in page and not list((tmp_path / "report").glob("*.png"))
    assert "lists/copy" in (tmp_path / "report" / "table-mini-llada.csv").read_text()  # named as missing


def test_nothing_to_report_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no results of a task. Make some with"):
        read_cells(tmp_path)


def points_of(axis: Axes) -> list[Line2D]:
    """The markers that a reader sees: single points within the axis, and no star above them."""
    (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
    lines = [line for line in axis.lines if line.get_marker() not in ("None", "")]

    def seen(line: Line2D) -> bool:
        places = list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        above = [one for one in lines if one.get_marker() == "*" and one.get_zorder() > line.get_zorder()]
        stars = [(*one.get_xdata(), *one.get_ydata()) for one in above]
        return any(left <= x <= right and low <= y <= high and (x, y) not in stars for x, y in places)

    return [line for line in lines if seen(line)]


def unseen(figure: Figure) -> list[str]:
    """Entries of the legend that no point stands for."""
    points = [point for axis in figure.axes for point in points_of(axis)]
    looks = {(point.get_marker(), str(point.get_color())) for point in points}
    filled = [p for p in points if p.get_marker() not in "*x" and p.get_markerfacecolor() != "none"]
    return [
        entry.get_label()
        for entry in figure.legends[0].legend_handles
        if not (filled if entry.get_label().startswith("filled") else (entry.get_marker(), entry.get_color()) in looks)
    ]


def test_a_legend_has_no_entry_without_a_point(tmp_path: Path) -> None:
    *busy, starred, chosen = points(
        cell(tmp_path / "a", ["sampler=confidence"], {"copy": [1, 1]}, 8, **BUSY),
        cell(tmp_path / "b", ["sampler=eb"], {"copy": [1, 0]}, 4, **BUSY),
        cell(tmp_path / "c", ["sampler=static"], {"copy": [1, 1]}, 8),
        cell(tmp_path / "d", ["sampler=wino"], {"copy": [1, 1]}, 1),
    )
    for row in chosen.rows:
        row |= {"nfe": 0, "seconds": 0.0, "useful_tokens": 0}
    for cells in (busy, [*busy, starred], [*busy, chosen], [*busy, starred, chosen]):
        for timed, x in ((True, lambda one: one.measures.speed), (False, lambda one: one.measures.tpf)):
            figure = plots.tradeoff(cells, x, "speed", timed)
            assert unseen(figure) == []
            labels = {entry.get_label() for entry in figure.legends[0].legend_handles}
            assert {"confidence", "eb"} <= labels and ("one token per step" in labels) == (starred in cells)
        (figure,) = plots.curves_of_tasks(cells).values()
        assert unseen(figure) == []


def test_the_legends_of_a_sweep_are_whole(sweep: Path) -> None:
    figure = plots.tradeoff(points(*read_cells(sweep)[0]), plots.per_forward, "forwards")
    labels = [entry.get_label() for entry in figure.legends[0].legend_handles]
    assert labels == [
        "static",
        "confidence",
        "oracle",
        "one token per step",
        "lossless minimum",
        "filled: Pareto-optimal",
    ]
    assert unseen(figure) == []
    stars = [line for axis in figure.axes for line in axis.lines if line.get_marker() == "*"]
    # Four useful tokens of each item, in 8 forwards one by one and in 3 at least; all are right.
    assert sorted((*line.get_xdata(), *line.get_ydata()) for line in stars) == [(4 / 8, 100), (4 / 3, 100)]


def test_panels_that_share_an_axis_show_the_points_of_all(tmp_path: Path) -> None:
    poor = cell(tmp_path / "a", ["model=mini-dream", "sampler=eb"], {"copy": [0] * 40}, 4)
    good = cell(tmp_path / "b", ["model=mini-llada", "sampler=eb"], {"copy": [1] * 40}, 4)
    figure = plots.tradeoff(points(poor, good), lambda one: one.measures.tpf, "speed")
    assert all(points_of(axis) for axis in figure.axes)


@pytest.fixture
def many(tmp_path: Path) -> list[SettingResults]:
    """A setting of each of 40 methods with long names, of which some have several."""
    one = cell(tmp_path / "a", ["sampler=static"], {"copy": [1, 0], "shuffle": [1, 1]}, 4)

    def of(method: int, setting: int) -> CellResults:
        words = {"score": f"a_rule_with_a_name_as_long_as_{method:02}", "per_step": setting}
        config = {**one.config, "sampler": {**one.config["sampler"], **words}}
        return replace(one, folder=tmp_path / f"{method:02}-{setting}", config=config)

    return points(*(of(method, setting) for method in range(40) for setting in range(1, 3 if method % 9 == 4 else 2)))


def drawn(cells: Sequence[SettingResults]) -> list[Figure]:
    return [plots.tradeoff(cells, lambda one: one.measures.tpf, "tokens"), *plots.curves_of_tasks(cells).values()]


@pytest.mark.parametrize("count", [3, 40])
def test_a_legend_is_within_its_picture_and_beside_the_panels(many: list[SettingResults], count: int) -> None:
    names = [method.name for method in methods(many)][:count]
    for figure in drawn([one for method in methods(many)[:count] for one in method.settings]):
        figure.draw_without_rendering()
        (shown,) = figure.legends
        box, canvas = shown.get_window_extent(), figure.bbox
        assert canvas.x0 <= box.x0 and box.x1 <= canvas.x1 and canvas.y0 <= box.y0 and box.y1 <= canvas.y1
        panels = [axis.get_tightbbox() for axis in figure.axes if axis.get_visible()]
        assert all(panel is not None and panel.x1 <= box.x0 for panel in panels)
        assert min(axis.bbox.width for axis in figure.axes) > 100  # dots: no legend leaves its panels a sliver
        assert {text.get_text() for text in shown.get_texts()} & set(names)


def test_forty_methods_look_different_in_colour_and_marker(many: list[SettingResults]) -> None:
    looks = [(look.colour, look.marker) for look in plots.styles(many).values()]
    assert len(set(looks)) == len(looks) == 40  # filled or not is a point's, and tells no methods apart
    assert plots.GREY not in {colour for colour, _ in looks}
    entries = drawn(many)[0].legends[0].legend_handles[:40]
    assert len({(entry.get_color(), entry.get_marker()) for entry in entries}) == 40
    lines = [entry.get_linewidth() > 0 for entry in entries]
    assert lines == sorted(lines, reverse=True) and sum(lines) == 4  # curves first; a single setting has no line
    assert unseen(drawn(many)[0]) == []


def test_methods_at_the_same_place_are_all_seen(many: list[SettingResults]) -> None:
    best = replace(many[0], rows=[row | {"nfe": 1, "scores": {"score": 1}} for row in many[0].rows])
    axis = plots.tradeoff([best, *many[1:4]], lambda one: one.measures.tpf, "tokens").axes[0]
    faces = [line.get_markerfacecolor() for line in axis.lines if line.get_marker() in plots.MARKERS]
    assert faces == [plots.COLOURS[0], "none", "none", "none"]  # one beats the others, which share a place


@pytest.mark.parametrize("library", ["pandas", "matplotlib"])
def test_without_its_libraries_nothing_is_read_or_written(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dllm.app.commands.report.find_spec", lambda name: None if name == library else name)
    with pytest.raises(UserError, match=rf"a report needs {library}, .* pip install -e '.*\[report\]'"):
        run_report([str(tmp_path / "not there"), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
