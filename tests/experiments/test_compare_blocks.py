"""The table of block schedules: what is measured of confidences by hand, and the groups that it compares."""

from __future__ import annotations

from statistics import stdev

import pytest

from dllm import Result, load
from experiments.compare.blocks import Bench, fixed, watched_cells
from experiments.compare.confidence_band import Seen, by_distance, pooled, regions, text_length, widths


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
