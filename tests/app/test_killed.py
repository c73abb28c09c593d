"""kill -9 at any moment and the same command again: every sample once, and the tables of an undisturbed sweep."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from dllm.parts import named_settings, read_cells
from dllm.view.report import setting_tables as tables
from tests.app.conftest import ROOT, Run, cells_of, command, rows_of
from tests.support.killing import Work, hashes

pytestmark = pytest.mark.program
SETTINGS = ["-m", "+task.count=9", "batch_size=2", "sampler=confidence,static,oracle", "eos=none"]
SAMPLES = 27


def lines(sweep: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in sweep.glob("*/results.jsonl"))


def killed_at(count: int, sweep: Path, arguments: list[str]) -> None:
    """A process of its own, killed when the sweep holds ``count`` samples. Not forked from this one, though that would
    save the imports: a lock that another thread holds then (tqdm's monitor) stays locked in the fork."""
    program = [sys.executable, str(ROOT / "run.py"), *arguments]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while lines(sweep) < count:
        assert process.poll() is None, "it ended by itself"
        time.sleep(0.001)
    process.kill()
    process.wait()


def test_a_sweep_killed_at_random_moments_is_the_undisturbed_one(run: Run, tiny: Path) -> None:
    assert run(*SETTINGS, "name=whole").code == 0
    moments = sorted(Random(5).sample(range(1, SAMPLES - 4), 2))
    for moment in moments:
        killed_at(moment, Path("runs/killed"), command(tiny, *SETTINGS, "name=killed"))
        assert moment <= lines(Path("runs/killed")) < SAMPLES
    assert run(*SETTINGS, "name=killed").code == 0
    assert cells_of(Path("runs/killed")) == cells_of(Path("runs/whole"))
    for cell in Path("runs/killed").glob("*/"):
        names = [(row["id"], row["sample"]) for row in rows_of(cell)]
        assert len(names) == len(set(names)) == 9
    assert tables_of(Path("runs/killed")) == tables_of(Path("runs/whole"))


def test_a_killed_run_of_prompts_has_every_sample_once(run: Run, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("".join(f'{{"prompt": "w{number}"}}\n' for number in range(20)))
    settings = [f"model.path={tiny}", "prompts=p.jsonl", "batch_size=3", "gen_length=64", "sampler=static", "name=k"]
    killed_at(7, Path("runs"), settings)
    assert 7 <= lines(Path("runs")) < 20
    assert run("resume=runs/k", bare=True).code == 0
    assert sorted(int(row["id"]) for row in rows_of(Path("runs/k"))) == list(range(1, 21))


def tables_of(sweep: Path) -> list[str]:
    """All but the times."""
    found = named_settings(read_cells(sweep)[0])
    outcomes = tables.setting_table(found, tables.OUTCOMES)
    return [outcomes.csv(), *(table(found).csv() for table in (tables.limit_distances, tables.curves, tables.tasks))]


@pytest.mark.parametrize("kind", ["quantize", "report"])
def test_a_killed_command_leaves_whole_files_and_goes_on(kind: str, run: Run, tmp_path: Path) -> None:
    """Bytes are those of an undisturbed run."""
    if kind == "report":
        assert run("-m", "+task.count=4", "sampler=confidence,static", "name=small").code == 0
        work = Work(lambda folder: ["report", "runs/small", "--out", str(folder)])
    else:
        model = ["model.path=mini-llada", "model.quantize=int4"]
        work = Work(lambda folder: ["task=quantize", *model, f"quantize.to={folder}"])
    work.whole(tmp_path / "whole")
    right, dice = hashes(tmp_path / "whole"), Random(3)
    for _ in range(2):
        work.kill(tmp_path / "killed", dice)
        assert kind == "quantize" or hashes(tmp_path / "killed").items() <= right.items()
    if hashes(tmp_path / "killed") != right:
        work.whole(tmp_path / "killed")
    assert hashes(tmp_path / "killed") == right
