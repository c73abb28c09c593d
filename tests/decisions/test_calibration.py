"""Calibration against closed forms, and the command from files to files."""

from __future__ import annotations

import json
import subprocess
import sys
from math import log
from pathlib import Path
from random import Random

import pytest

from dllm import UserError
from dllm.decisions.calibration import (
    Labelled,
    best_temperature,
    fitted,
    nll,
    quality,
    read_calibration,
    write_calibration,
)
from dllm.decisions.estimators import softmax

ROOT = Path(__file__).parents[2]


def drawn(temperature: float, count: int = 4000) -> list[Labelled]:
    """Items whose truth is drawn at a temperature."""
    rng, found = Random(1), []
    for _ in range(count):
        scores = [rng.gauss(0, 3) for _ in range(5)]
        found.append(Labelled(scores, rng.choices(range(5), softmax(scores, temperature))[0]))
    return found


@pytest.mark.parametrize("temperature", [0.8, 1.0, 2.5])
def test_the_fit_finds_the_temperature_at_which_truth_was_drawn(temperature: float) -> None:
    items = drawn(temperature)
    found = fitted("choice", items)
    assert found.temperature == pytest.approx(temperature, rel=0.07)
    assert found.nll_after <= found.nll_before and quality(items, found.temperature).ece < 0.02
    steps = [0.5 + 0.01 * n for n in range(300)]
    assert min(steps, key=lambda t: nll(items[:300], t)) == pytest.approx(best_temperature(items[:300]), abs=0.02)


def test_figures_of_quality_by_hand() -> None:
    items = [Labelled([log(0.75), log(0.25)], 0), Labelled([log(0.75), log(0.25)], 1)]
    found = quality(items)
    assert found.accuracy == 0.5 and found.ece == pytest.approx(0.25)
    assert found.nll == pytest.approx(-(log(0.75) + log(0.25)) / 2)
    assert found.brier == pytest.approx((2 * 0.25**2 + 2 * 0.75**2) / 2)


def test_few_errors_are_refused_and_files_belong_to_a_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="hold 0 errors"):
        fitted("choice", [Labelled([3.0, 0.0], 0)] * 50)
    write_calibration(tmp_path / "c.json", "mine", {"choice": fitted("choice", drawn(2.0, 500))})
    assert read_calibration(tmp_path / "c.json", "mine")["choice"] == pytest.approx(2, rel=0.2)
    with pytest.raises(UserError, match="was fitted for mine"):
        read_calibration(tmp_path / "c.json", "other")
    with pytest.raises(UserError, match="is no file of task=decide"):
        read_calibration(tmp_path / "none.json", "mine")


def test_the_command_answers_a_file_and_says_how_good_it_was(tmp_path: Path) -> None:
    names = ["Kai", "Emma", "Hugo"]
    question = {"type": "choice", "name": "first", "choices": names, "template": '["{slot}", "'}
    (tmp_path / "q.json").write_text(json.dumps([question]))
    lines = [
        {"prompt": f"Sort the list:\n{json.dumps([names[k] for k in order])}", "truth": {"first": truth}}
        for order, truth in (((0, 1, 2), "Emma"), ((2, 1, 0), "Emma"), ((0, 2, 1), "Kai"))
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    command = [
        sys.executable,
        "run.py",
        "task=decide",
        f"prompts={tmp_path}/p.jsonl",
        f"task.questions={tmp_path}/q.json",
    ]
    place = [f"output={tmp_path}", "name=out"]
    done = subprocess.run([*command, *place], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "first: 3 labelled, accuracy 0.667" in done.stdout and "3 answers, forwards 1, rows 3" in done.stdout
    rows = [json.loads(line) for line in (tmp_path / "out" / "decisions.jsonl").read_text().splitlines()]
    assert [row["answers"][0]["choice"] for row in rows] == ["Emma"] * 3
    refused = subprocess.run(
        [*command, f"output={tmp_path}", "task.calibrate=true"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert refused.returncode == 2 and "needs at least 20" in " ".join(refused.stderr.split())
