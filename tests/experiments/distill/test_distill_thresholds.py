"""A student beside its teacher: the lines and columns of the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from dllm import Decoder, load, part
from dllm.tasks.mini import tasks as mini
from experiments.distill import thresholds


def test_lines_are_thresholds_and_columns_models(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = mini.generate("copy", 1, 2)
    given = [str(tiny), str(tiny), "--tasks", "copy", "--count", "2", "--thresholds", "0", "1000"]
    assert thresholds.main(given) == 0
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert head == f"| threshold, nats |{f' {tiny.name}: score | {tiny.name}: tokens a forward |' * 2}"
    for threshold, line in zip((0.0, 1000.0), lines, strict=True):
        decode = Decoder(load(tiny), part("sampler", "dparallel", threshold=threshold), gen_length=32)
        rows = decode([sample.messages for sample in samples])
        tpf = f"{sum(row.useful_tokens for row in rows) / sum(row.nfe for row in rows):.2f}"
        right = "0 (0-66)"  # of two items
        assert line == f"| {threshold:g} | {right} | {tpf} | {right} | {tpf} |"


def test_a_model_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert thresholds.main(["nothing/here/at/all"]) == 2 and "nothing/here/at/all" in capsys.readouterr().err
