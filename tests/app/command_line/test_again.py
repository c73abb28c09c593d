"""``again=FOLDER``: what a run decoded, once more."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.app.command_line.conftest import Outcome, Run


def edited(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.fixture
def week(run: Run) -> Outcome:
    made = run("prompt=w1 w2", "samples=2", "sampling.temperature=0.7", "name=week")
    assert made.code == 0
    return made


def test_an_unchanged_run_is_equal_and_leaves_nothing(week: Outcome, run: Run) -> None:
    before = {one: one.read_bytes() for one in week.run.iterdir() if one.is_file()}
    again = run(f"again={week.run}")
    assert (again.code, again.out) == (0, f"{week.run}: 2 of 2 equal\n")
    assert {one: one.read_bytes() for one in week.run.iterdir() if one.is_file()} == before
    assert [one.name for one in week.folder.iterdir()] == ["week"]


def test_the_first_difference_is_told_with_what_has_changed_since(week: Outcome, run: Run) -> None:
    (first, second) = (json.loads(line) for line in (week.run / "results.jsonl").read_text().splitlines())
    second["canvas"][3] += 1
    (week.run / "results.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    noted = json.loads((week.run / "environment.json").read_text())
    changed = {**noted, "processor": "abacus", "versions": {**noted["versions"], "torch": "1.0"}}
    (week.run / "environment.json").write_text(json.dumps(changed))
    again = run(f"again={week.run}")
    told = again.out.splitlines()
    assert again.code == 1 and told[0].endswith("1 of 2 equal")
    now = second["canvas"][3] - 1
    assert told[1] == f"The first that differs is 1 (sample 1): canvas[3] is {now + 1} then, {now} now."
    assert "torch 1.0 then, 2." in told[2] and "processor abacus then, " in told[2]


def test_a_threshold_that_was_edited_shows_in_the_answers(run: Run) -> None:
    made = run("prompt=w1 w2", "sampler.threshold=0.99", "name=week")
    edited(made.run / "config.yaml", "threshold: 0.99", "threshold: 0.01")
    again = run(f"again={made.run}")
    assert again.code == 1 and "0 of 1 equal" in again.out and "sampler.threshold 0.99 then, 0.01 now" in again.out


def test_weights_that_changed_or_are_gone_are_refused(
    week: Outcome, run: Run, tiny: Path, tmp_path: Path, no_weights: None
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny, other)
    file = next(other.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    again = run(f"again={week.run}", f"model.path={other}")
    assert again.code == 2 and "the weights are others than those that decoded it (fingerprint " in again.err
    again = run(f"again={week.run}", f"model.path={tmp_path}/gone")
    assert again.code == 2 and "/gone, is not there any more. Name the folder that holds it now" in again.err


def test_a_lost_or_broken_environment_is_said(week: Outcome, run: Run) -> None:
    noted = week.run / "environment.json"
    for text in ("{", "[]"):
        noted.write_text(text)
        again = run(f"again={week.run}")
        assert again.code == 2 and "environment.json is broken. Restore it, or delete it" in again.err
    noted.unlink()
    assert run(f"again={week.run}").out == f"{week.run}: 2 of 2 equal\n"
    edited(week.run / "results.jsonl", '"nfe": ', '"nfe": 9')
    assert "not known, as environment.json is missing" in run(f"again={week.run}").out


def test_other_settings_and_folders_are_refused(week: Outcome, run: Run, no_weights: None) -> None:
    assert "so seed cannot be set" in run(f"again={week.run}", "seed=3").err
    assert "holds no config.yaml" in run(f"again={week.folder}").err
    (week.run / "results.jsonl").write_text("")
    assert "holds no finished sample" in run(f"again={week.run}").err
