"""``dllm check MODEL gpu= rows= length=``: what fits, of names and of folders with a config.json alone."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from dllm.models.weights.checkpoint_path import DESCRIPTIONS
from tests.app.command_line.conftest import Run

FITS = ("task.gpu=24", "task.rows=8", "task.length=4096")


def table(out: str) -> dict[str, list[str]]:
    """The cells of each kind of weights."""
    found = re.findall(r"^(bfloat16|float32|int8|int4) +(.*)$", out, flags=re.MULTILINE)
    return {kind: cells.replace("too much", "no").split() for kind, cells in found}


@pytest.mark.usefixtures("no_weights")
def test_a_known_name_is_answered_without_files(run: Run) -> None:
    """LLaDA-8B has 8,015,581,184 weights; a column keeps 2 x 32 x 4,096 numbers, and one of padding for each row."""
    outcome = run("task=check", "model=llada-8b-instruct", *FITS, "cache=dual")
    found = table(outcome.out)
    assert found["bfloat16"][:2] == [f"{2 * 8_015_581_184 / 2**30:.1f}", f"{8 * 4097 * 2 * 32 * 4096 * 2 / 2**30:.1f}"]
    assert outcome.code == 1 and outcome.out.rstrip().endswith("does not fit 24 GiB in any kind")
    assert int(found["int4"][6].replace(",", "")) < 4096 and int(found["int4"][7]) < 8
    fewer = run("task=check", "model=llada-8b-instruct", *FITS, f"task.rows={found['int4'][7]}", "cache=dual")
    assert fewer.code == 0 and "fits 24 GiB: " in fewer.out


def test_a_description_alone_is_no_broken_checkpoint(run: Run, tmp_path: Path) -> None:
    shutil.copy(DESCRIPTIONS / "dream-7b" / "config.json", tmp_path)
    outcome = run("task=check", f"model.path={tmp_path}", *FITS)
    assert outcome.code == 0 and tmp_path.name in outcome.out and table(outcome.out)["int4"][5] == "fits"
    plain = run("task=check", f"model.path={tmp_path}")
    assert plain.code == 1 and "no weights to decode with" in plain.out and "not usable" not in plain.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["model=llada-8b-instruct", "task.rows=0"], "task.rows=0 must be at least 1"),
        (["model=llada-8b-instruct", "task.length=5000"], "length=5000 is more than the 4096 positions"),
        (["model=mini-llada", "task.gpu=-1"], "task.gpu=-1.0 must be at least 0.1"),
        (["model=diffusiongemma-26b", "task.gpu=24"], "is not counted here"),
    ],
)
def test_what_cannot_be_counted_is_refused(run: Run, words: list[str], sentence: str) -> None:
    outcome = run("task=check", *words)
    assert outcome.code == 2 and sentence in outcome.err
