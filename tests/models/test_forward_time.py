"""The check of a checkpoint says how long products take, by CPU time, in every kind that this CPU has."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dllm import load
from dllm.parts import CHECKPOINTS, NarrowLinear, fact_rows, forward_seconds, inspect_checkpoint, this_processor


def test_time_that_others_take_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that waits 20 ms for its turn takes as long as one that does not."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config, plain = load("mini-llada").config, NarrowLinear.forward

    def waiting(self: Any, x: Tensor) -> Tensor:
        time.sleep(0.02)
        return plain(self, x)

    monkeypatch.setattr(NarrowLinear, "forward", waiting)
    before, threads = time.perf_counter(), torch.get_num_threads()
    found = forward_seconds(config, 128 * 768, "int8")
    assert found is not None and time.perf_counter() - before > 3 * 0.02
    assert max(found) < 0.01 and torch.get_num_threads() == threads


def test_narrow_kinds_are_listed_with_both_kinds_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dllm.app.commands.checkpoint_table.TIMED", 0)
    rows = [name for name, _ in fact_rows(inspect_checkpoint(CHECKPOINTS / "mini-llada")) if name.startswith("forward")]
    here = this_processor()
    rounded = [f"forward {kind}, rows in int8" for kind, has in (("int8", here.most), ("int4", here.pack)) if has]
    assert sorted(rows) == sorted(["forward float32", "forward bfloat16", "forward int8", "forward int4", *rounded])
