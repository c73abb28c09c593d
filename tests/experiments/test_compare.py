"""The comparisons: confidences by hand, groups, kinds of models, rounding, curves, refusals."""

from __future__ import annotations

import re
from statistics import stdev

import pytest
import torch
from harness import of_noise

from dllm import Result, load, part
from dllm.parts import Confidence, Credit, choices, narrowed, widened
from dllm.tasks.mini import tasks as mini
from experiments.compare import constrained_tasks, rounding
from experiments.compare.blocks import Bench, fixed, watched_cells
from experiments.compare.confidence_band import Seen, by_distance, pooled, regions, text_length, widths
from experiments.compare.parallelism import KNOBS, Curve, Setting, areas_of, line
from experiments.compare.rounding import ROUNDINGS, extremes, least_squares
from experiments.compare.samplers import Comparison, interval
from experiments.support.markdown import percent


def seen(*confidence: float | None, open_: int = 4) -> Seen:
    """A forward over an answer; None where a position is decided."""
    masks = {at: value for at, value in enumerate(confidence) if value is not None}
    return Seen(masks, set(range(open_)), False)


def result(tokens: int, length: int) -> Result:
    return Result([1], [5] * tokens, "", [5] * length, 1, 1, 0.1, "eos", 0, [1] * length)


def test_regions_lie_between_the_leftmost_mask_and_the_end_of_the_text() -> None:
    assert widths(seen(None, 0.9, None, 0.5, 0.9, 0.2, 0.05, 0.01, 1.0), 8) == (2, 3, 2)
    assert widths(seen(0.9, 0.95, 0.8), 3) == (3, 0, 0)
    assert widths(seen(0.05, 0.1, None), 3) == (0, 3, 0)  # what is decided is sure
    assert widths(seen(0.05, 0.02), 2) == (0, 0, 2)
    assert widths(seen(None, None, 0.5), 2) is None  # behind the text alone


def test_a_mask_of_the_text_that_is_sure_but_not_open_is_late() -> None:
    one = seen(0.5, 0.5, 0.5, 0.5, 0.9, 0.95)
    assert one.is_late(0.9, 5) and not one.is_late(0.95, 5) and one.is_late(0.95, 6)


def test_tables_of_one_forward() -> None:
    row = result(4, 8)
    assert text_length(row) == 5 and text_length(result(8, 8)) == 8
    forwards, rows = [[seen(None, 0.9, 0.5, 0.5, 0.05, 1.0)]], [row]
    assert "| 0 | 1 | 0.90 ±0.00 | 100 % | 0 % | 0 % |" in by_distance(forwards, rows)
    assert "| 2 to 3 | 2 | 0.28 ±0.00 | 0 % | 50 % | 50 % |" in by_distance(forwards, rows)
    assert "| after the text | 1 | 1.00 ±0.00 | 100 % | 0 % | 0 % |" in by_distance(forwards, rows)
    assert "| volatility band | 2.0 ±0.0 |" in regions([[*forwards[0], *forwards[0]]], rows)


def test_a_mean_whose_interval_counts_a_rows_values_together() -> None:
    """Rows of one value each: the normal interval. Twice the same values in each row: no narrower."""
    values = [0.0, 1.0, 1.0, 2.0]
    found = f"1.00 ±{1.96 * stdev(values) / 4**0.5:.2f}"
    assert pooled([[value] for value in values], 2) == pooled([[value] * 2 for value in values], 2) == found


@pytest.fixture(scope="module")
def bench() -> Bench:
    one = Bench(load("mini-llada"), "short", 5, 1)
    one.items = one.items[:2]  # copies: one or two forwards each
    return one


def test_a_group_begins_with_fixed_blocks_and_holds_several_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = bench.groups()
    for group in groups.values():
        assert group[0].blocks == "fixed" and "ahead" in {one.blocks for one in group}
    monkeypatch.setattr(bench, "groups", lambda: {"": groups["d3llm 0.5, cached"]})
    lines = bench.several().splitlines()
    assert lines[0].startswith("### mini-llada, short answers, 2 items: several") and len(lines) == 4 + 5
    assert "| 100 (34-100) |  |" in lines[4] and "ahead, cache=delayed | 100 (34-100) | +0.0" in lines[8]


def test_one_block_is_never_late(bench: Bench) -> None:
    blocks, late, forced = watched_cells(bench.column(fixed(32)))
    assert (blocks, late) == ("1.0", "0 %") and forced.endswith("%")


ONCE = torch.ones(1, 4, dtype=torch.float64)


def setting(right: list[float], forwards: int) -> Setting:
    """Four items of 8 tokens."""
    counts = torch.tensor([[8.0] * 4, [float(forwards)] * 4], dtype=torch.float64)
    return Setting(torch.tensor(right, dtype=torch.float64), *counts)


def test_a_curve_begins_at_one_token_and_ends_before_it_falls() -> None:
    """One token a forward up to the first point, then a trapezium; a bold setting that fails does not count."""
    one, two, bold = setting([1, 1, 1, 1], 8), setting([1, 1, 1, 1], 4), setting([0, 1, 1, 1], 2)
    curve = Curve("a", "it", [one, bold, two])
    assert curve.points(ONCE) == [[(1.0, 100.0), (4.0, 75.0), (2.0, 100.0)]]
    assert areas_of([curve, Curve("b", "it", [one])], ONCE) == [[pytest.approx(200)], [pytest.approx(100)]]
    assert line(curve, [200.0, 180.0, 220.0])[1:5] == ["200 (181-219)", "100.0", "2.00", "1 of 2"]


def test_what_another_sampler_scores_more_weighs_on_all() -> None:
    """The first point counts whole, as in the leaderboard; the others by exp(-3 x their distance from the best)."""
    half, all_ = setting([1, 1, 0, 0], 8), setting([1, 1, 1, 1], 8)
    found = areas_of([Curve("a", "it", [half, setting([1, 1, 0, 0], 4)]), Curve("b", "it", [all_])], ONCE)
    assert found[0] == [pytest.approx(50 + 50 * torch.tensor(-1.5).exp().item(), rel=1e-6)]


def test_every_sampler_has_a_curve_of_settings_that_there_are() -> None:
    assert set(KNOBS) <= set(choices("sampler")) - {"oracle", "d2f", "dmax"} - of_noise()  # a new one may follow
    assert all(len([*knob.settings()]) == len(knob.values) > 2 for knob in KNOBS.values())
    rule = part("sampler", "credit", **[*KNOBS["credit"].settings()][1])
    assert isinstance(rule, Credit) and isinstance(rule.inner, Confidence) and rule.inner.threshold == 0.9
    assert str(KNOBS["credit"]) == "`inner.threshold` 0.95 to 0.6, over `confidence`"
    assert [*KNOBS["prior"].settings()][0] == {"inner": {"name": "static", "per_step": 2}}


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


def test_intervals() -> None:
    assert interval([1.0, 3.0], 1) == "2.0 ±2.0"
    assert percent([1.0] * 10) == "100 (72-100)"


@pytest.mark.parametrize("name", ["mini-llada"])
def test_every_sampler_has_its_line_and_freedave_loses_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mini, "SHORT_ANSWERS", mini.SHORT_ANSWERS[::6])  # an item of each takes 25 s
    comparison = Comparison(load(name), count=1, seed=5)
    comparison.run()
    lines = comparison.table().splitlines()
    causal = {"linear_spec", "d2f", "dmax"}  # for models that attend by blocks or by rows
    assert {words.partition(":")[0] for words in comparison.refused} == causal | of_noise()
    assert len(lines) == len(choices("sampler")) - len(causal | of_noise()) + 5
    holds = dict(comparison.relations())
    assert holds["freedave decodes what static decodes"]
    assert holds["no item needs fewer forwards under freedave than its lossless minimum"]


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
