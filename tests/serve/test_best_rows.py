"""A server decodes as many rows together as its model decodes fastest, unless the user says a number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dllm import load
from dllm.common import machine_note
from dllm.parts import (
    Defaults,
    Request,
    Runner,
    RunPlan,
    Runtime,
    ServeSettings,
    best_rows,
    composed,
    fewest_at_best,
    noted_rates,
    plain_config,
    rates_by_rows,
    service_of,
)
from dllm.serve.engine import best_rows as module
from tests.serve.bodies import mini_defaults


@pytest.mark.parametrize(
    ("rates", "rows"),
    [
        ({1: 100.0, 8: 400.0, 16: 500.0, 32: 600.0}, 32),
        ({1: 100.0, 8: 400.0, 16: 590.0, 32: 600.0}, 16),
        ({1: 100.0, 8: 99.0, 16: 98.0}, 8),
        ({1: 100.0, 8: 50.0, 16: 60.0}, 8),
        ({1: 100.0}, 8),
        ({}, 8),
    ],
    ids=str,
)
def test_the_fewest_rows_near_the_best_rate_are_taken(rates: dict[int, float], rows: int) -> None:
    assert fewest_at_best(rates) == rows


@pytest.mark.parametrize("kept", [None, 5, [1], {"8": "fast"}, {"9": 1.0}, {"8": -1.0}, {"8": float("nan")}, {8: 1.0}])
def test_a_note_of_something_else_says_nothing(kept: Any) -> None:
    assert noted_rates(kept) == {}


def test_rates_are_those_of_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn takes 0.1 s and 0.01 s a row. The fourth size would take longer than what is left."""
    began = list[int]()

    class Turns:
        def start(self, requests: list[Request]) -> int:
            began.append(len(requests))
            return len(requests)

        def turns(self, rows: int) -> Iterator[None]:
            while True:
                now[0] += 0.1 + 0.01 * rows
                yield None

    now, defaults = [0.0], mini_defaults(load("mini-llada"))
    monkeypatch.setattr(module.time, "process_time", lambda: now[0])
    stand_in: Any = Turns()
    stand_in.model = defaults.model
    monkeypatch.setattr(module, "TRIAL_SECONDS", 4.2)
    assert rates_by_rows(stand_in, 32) == pytest.approx({1: 1 / 0.11, 8: 8 / 0.18, 16: 16 / 0.26})
    assert began == [1, 8, 16]
    monkeypatch.setattr(module, "TRIAL_SECONDS", 0.1)
    assert rates_by_rows(stand_in, 32) == {}, "one turn takes longer"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine_note, "is_busy", lambda: False)
    return tmp_path


def test_a_server_measures_once_and_a_users_number_holds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = plain_config(composed(["task=serve", "gen_length=16"]))
    plan = RunPlan.of(config)
    monkeypatch.setattr(module, "rates_by_rows", lambda runner, length: {"8": 1.0, "16": float(length)})
    for rows, told in (({}, 16), ({"max_rows": 3}, 3), ({"max_rows": 8}, 8)):
        settings = ServeSettings.of({**config["task"], **rows}, {})
        service = service_of(config, plan, settings)
        service.scheduler.close(0.0)
        service.scheduler.state = "closed"
        assert service.scheduler.limits.max_rows == told
        assert service.defaults.max_choices == settings.limits.max_rows == (rows or {"max_rows": 8})["max_rows"]
        monkeypatch.setattr(module, "rates_by_rows", lambda runner, length: pytest.fail("it was noted"))


def test_a_small_model_is_measured(folder: Path) -> None:
    defaults: Defaults = mini_defaults(load("mini-llada"))
    usual = defaults.usual()
    runner = Runner.of(defaults.model, usual.parts, Runtime("eager"))
    assert best_rows(runner, usual, 16) in (8, 16, 32)
    assert set(rates_by_rows(runner, 16)) >= {1, 8}
