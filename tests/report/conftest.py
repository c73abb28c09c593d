"""A sweep for the tests of reports."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dllm.parts import write_refused
from tests.report.report_cells import cell, config_of


@pytest.fixture
def vectors() -> None:
    """Asked for by tests that need a report's pictures as PDF and SVG, too."""


@pytest.fixture(autouse=True)
def png_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors take as long as all else of a report."""
    look = sys.modules.get("dllm.view.report.plots")
    if look is not None and "vectors" not in request.fixturenames:
        monkeypatch.setattr(look, "DATES", {"png": {}})


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """static at one and four positions a forward, confidence, and the oracle; one combination refused."""
    place = tmp_path / "sweep"
    cell(place / "a", ["sampler=static"], {"copy": [1, 1], "shuffle": [1, 1]}, 8)
    cell(place / "b", ["sampler=static", "sampler.per_step=4"], {"copy": [1, 1], "shuffle": [0, 0]}, 2)
    cell(place / "c", ["sampler=confidence"], {"copy": [1, 1], "shuffle": [1, 0]}, 4)
    cell(place / "d", ["sampler=oracle"], {"copy": [1, 1], "shuffle": [1, 1]}, 2, lossless=3)
    refused = config_of("sampler=wino", "cache=dkv_pd")
    write_refused(place / "e" / "refused.json", refused, ["sampler=wino"], "This pair cannot work.")
    return place
