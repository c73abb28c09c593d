"""Whole runs on tiny models: a kill changes nothing, and two processes learn what one learns."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.distill import __main__ as distill
from experiments.distill import chunks
from tests.experiments.distill.conftest import options
from tests.support.harness import full


def killed(arguments: list[str], module: Any, name: str, call: int) -> None:
    """Run in another process, which SIGKILL ends inside a given call of ``module.name``, before it does anything."""

    def run() -> None:
        calls, real = [0], getattr(module, name)

        def fatal(*given: Any, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **options)

        setattr(module, name, fatal)
        distill.main(arguments)

    other = multiprocessing.get_context("fork").Process(target=run)
    other.start()
    other.join()
    assert other.exitcode == -signal.SIGKILL


def outcome(out: Path) -> dict[str, Any]:
    """All that a run leaves behind but its times."""
    report = json.loads((out / "report.json").read_text())
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    files = {
        str(file.relative_to(out)): file.read_bytes()
        for folder in ("checkpoint", "teacher", "before", "after")
        for file in sorted((out / folder).iterdir())
    }
    curve = [{key: value for key, value in line.items() if not key.endswith("minutes")} for line in log]
    state = torch.load(out / "training.pt", weights_only=True)
    return {
        "files": files,
        "curve": curve,
        "before": report["before"],
        "after": report["after"],
        "state": str((state["weights"], state["optimizer"], state["step"])),
    }


def test_a_run_killed_twice_ends_as_one_that_was_not(tiny: Path, data: Path, tmp_path: Path) -> None:
    straight, other = tmp_path / "straight", tmp_path / "killed"
    assert distill.main(options(tiny, data, straight)) == 0
    arguments = options(tiny, data, other)
    killed(arguments, os, "fsync", 3)  # recipe.json and an answer are there, the next answer is half written
    assert (other / "teacher" / "000000.json").is_file() and not (other / "training.pt").is_file()
    killed(arguments, torch, "save", 4)  # the log is ahead of the state
    assert torch.load(other / "training.pt", weights_only=True)["step"] == 6
    assert json.loads((other / "log.jsonl").read_text().splitlines()[-1])["step"] == 8
    with (other / "log.jsonl").open("a") as log:
        log.write('{"step": 10, "ri')  # as if it had been cut there
    assert distill.main(arguments) == 0
    assert outcome(other) == outcome(straight)
    assert json.loads((other / "report.json").read_text())["starts"] == 2  # the first ended before training began
    assert outcome(straight)["files"]["checkpoint/model.safetensors"] != (tiny / "model.safetensors").read_bytes()
    assert [line["step"] for line in outcome(straight)["curve"]] == list(range(2, 13, 2))
    assert (straight / "curve.svg").read_text().startswith("<?xml")


def test_what_is_written_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks.write(tmp_path / "a.json", "before")

    def full_disk(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        chunks.write(tmp_path / "a.json", "after")
    assert (tmp_path / "a.json").read_text() == "before"


@pytest.mark.skipif(not full(), reason="starts three interpreters, 20 s")
def test_two_processes_learn_what_one_learns(tiny: Path, data: Path, tmp_path: Path) -> None:
    # accelerate's own launcher starts a single process on a CPU; torch's starts as many as it is told.
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "--standalone",
        "-m",
        "experiments.distill",
    ]
    line = options(tiny, data, tmp_path / "two", "steps=6")
    root = Path(distill.__file__).parents[2]
    done = subprocess.run([*launch, *line], capture_output=True, text=True, timeout=240, cwd=root)
    assert done.returncode == 0, done.stderr
    assert distill.main(options(tiny, data, tmp_path / "one", "steps=6")) == 0
    one, two = (torch.load(tmp_path / name / "training.pt", weights_only=True) for name in ("one", "two"))
    assert one["step"] == two["step"] == 6
    assert [json.loads((tmp_path / name / "report.json").read_text())["processes"] for name in ("one", "two")] == [1, 2]
    for name, weight in one["weights"].items():
        assert torch.allclose(weight, two["weights"][name], atol=2e-4), name
    logs = [
        [json.loads(line)["cross_entropy"] for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert logs[0] == pytest.approx(logs[1], rel=1e-3)
