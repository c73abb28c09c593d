"""``dllm diff A B``: two traces, or two runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dllm.common.errors import UserError
from dllm.parts import diff_lines, paired_interval, read_side
from tests.app.command_line.conftest import Run


def made(run: Run, name: str, *settings: str) -> Path:
    outcome = run("prompt=w1 w2", f"name={name}", *settings)
    assert outcome.code == 0, outcome.err
    return outcome.folder / name


def told(run: Run, one: Path, other: Path) -> str:
    return "\n".join(diff_lines(read_side(one), read_side(other)))


def test_equal_runs_and_another_threshold(run: Run) -> None:
    first, same = (made(run, name, "sampler.threshold=0.9", "trace=true", "samples=2") for name in ("a", "b"))
    other = made(run, "c", "sampler.threshold=0.01", "trace=true", "samples=2")
    equal = told(run, first, same)
    assert "Settings: the same." in equal and "Answers: 2 of 2 equal; 2 forward by forward" in equal
    apart = told(run, first, other)
    assert "  sampler.threshold: 0.9 | 0.01" in apart and "They part in forward 1, at position " in apart
    assert "  one: waits with " in apart and "  other: commits " in apart and "difference " in apart
    traces = told(run, *(folder / "traces" / "1-0.json" for folder in (first, other)))
    assert traces.splitlines()[-4:-1] == apart.splitlines()[4:7]


def test_runs_without_traces_still_tell_the_place(run: Run) -> None:
    with_traces = [made(run, name, f"sampler={name}", "trace=true") for name in ("confidence", "static")]
    without = [made(run, f"{name}2", f"sampler={name}") for name in ("confidence", "static")]
    lines = [told(run, *pair).splitlines() for pair in (with_traces, without)]
    (place,), (bare,) = ([line for line in one if line.startswith("They part")] for one in lines)
    assert bare.startswith(place.removesuffix(":")) and "decode with trace=true" in bare


def test_other_weights_prompts_and_folders_are_refused(run: Run, tmp_path: Path) -> None:
    one, other = made(run, "a"), made(run, "b")
    with pytest.raises(UserError, match="gone is not there"):
        read_side(tmp_path / "gone")
    file = other / "environment.json"
    noted = json.loads(file.read_text())
    file.write_text(json.dumps({**noted, "content": {**noted["content"], "checkpoint": "0"}}))
    with pytest.raises(UserError, match="other weights: their forwards part for that alone"):
        told(run, one, other)
    file.write_text(json.dumps(noted))
    (row,) = map(json.loads, (other / "results.jsonl").read_text().splitlines())
    (other / "results.jsonl").write_text(json.dumps({**row, "prompt_tokens": [1]}) + "\n")
    with pytest.raises(UserError, match="share no sample of one prompt"):
        told(run, one, other)


def test_the_interval_is_students() -> None:
    """Of 1, 2, 3: mean 2, t of two degrees 4.303 (1.96 normal: 4.3030), s / sqrt(3) = 0.57735."""
    assert paired_interval([1.0, 2.0, 3.0]) == ", difference +2 (95 % interval -0.484 to +4.48)"
    assert paired_interval([1.0]) == ""
