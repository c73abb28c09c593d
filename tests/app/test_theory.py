"""What the theory of parallel decoding says of list tasks, seen on a mini model (arXiv 2510.04767): where the answer
follows from the question, tokens may be decoded together; where several answers are right, they clash."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from harness import full

from dllm.report.pooling import read_cells
from dllm.report.setting_names import named_settings
from tests.app.conftest import Run


@pytest.mark.skipif(not full(), reason="6 s; runs under DLLM_LAWS=all")
def test_copy_stays_and_shuffle_falls(run: Run) -> None:
    tasks = "task.tasks=[copy,reverse,shuffle,replace_random]"
    sweep = ["-m", "task=parallelbench", tasks, "task.count=8", "sampler=static", "sampler.per_step=1,8"]
    assert run(*sweep, "blocks=whole", "eos=none", "batch_size=8", "name=s", bare=True).code == 0
    careful, reckless = sorted(named_settings(read_cells(Path("runs/s"))[0]), key=lambda one: one.measures.tpf)
    score = {name.rpartition("/")[2]: value for name, value in reckless.scores.items()}
    assert fmean(careful.scores.values()) > 80
    assert min(score["copy"], score["reverse"]) >= 62  # of 8 items: 88 and 90 of 100, says the card
    assert score["shuffle"] < 30 and score["replace_random"] < 50
