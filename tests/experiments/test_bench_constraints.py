"""The benchmark of constraints, on a demo model's vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest

from dllm.parts import Tokenizer
from experiments.bench import constraints as bench_constraints
from experiments.figures.compare import cells

MINI = Path(bench_constraints.__file__).parents[2] / "dllm" / "models" / "checkpoints" / "mini-llada"


def test_every_language_has_a_line_with_its_times(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["date", "person"]
    assert bench_constraints.main([f"--tokenizer={MINI}", "--languages", *names, "--gen-length=96"]) == 0
    head, names_of, _, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith(f"{len(Tokenizer.from_folder(MINI)):,} tokens")
    rows = [cells(line) for line in lines]
    assert [row[0] for row in rows] == names and {len(row) for row in rows} == {len(cells(names_of))}
    assert all(float(number) >= 0 for row in rows for number in row[1:])
