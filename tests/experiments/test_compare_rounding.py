"""Ways to round to four bits: on weights whose best rounding is known, and the tables of one command."""

from __future__ import annotations

import pytest
import torch

from dllm.kernels.narrow_product import narrowed, widened
from experiments.compare import rounding
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
