"""The benchmark of what constraints add to a turn, on a demo model's vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.bench import constraint_overhead as bench

MINI = Path(bench.__file__).parents[2] / "dllm" / "models" / "checkpoints" / "mini-llada"


def test_right_proposals_are_kept_and_wrong_ones_made_anew(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"--tokenizer={MINI}", "--languages=date", "--gen-length=32", "--rows=2", "--joint"]
    assert bench.main(arguments) == 0
    _, _, *lines = capsys.readouterr().out.splitlines()
    corrected = {line[8:20].strip(): [float(number) for number in line[20:].split()] for line in lines}
    assert list(corrected) == ["right", "right joint", "wrong", "wrong joint"]
    assert (
        corrected["right"][1] == corrected["right joint"][1] == 0 < corrected["wrong"][1] <= corrected["wrong joint"][1]
    )
