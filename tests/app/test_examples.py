"""The examples run from any folder and print what they are for; the notebook shows what its cells print."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tests.app.conftest import ROOT

EXAMPLES = ROOT / "examples"
LINES = 26  # of an example
PRINTED = {
    "watch_a_decode": r'static, forwards: 8\n(.|\n)*\["Emma", "Hugo", "Kai", "Nell"\]\n.*confidence\.html plays it',
    "own_sampler": r'\["Kai", "Emma", "Ada"\]  forwards: 2; .*\n\["Kai", "Emma", "Ada"\]  forwards: 1; ',
    "valid_json": r"{'name': 'Bush', 'age': 72, 'town': 'Cairo'}\n(.|\n)*yes or no: (yes|no)\n",
    "fill_and_decide": r'"town": "Cairo"}, (.|\n)*\["Emma", "Kai", "Hugo"\]\n\["Kai", "Emma", "Hugo"\]\nCairo \(Cairo ',
    "rollouts": r"before the step: \d\.\de-0[67]\n(reward [01]  log-probability [-+]\d+\.\d{3}  \[.*\n){8}",
}


def test_every_example_is_short_and_stands_in_the_readme() -> None:
    files = {file.stem: file.read_text() for file in EXAMPLES.glob("*.py")}
    assert {*files} == {*PRINTED} and max(text.count("\n") for text in files.values()) <= LINES
    listed = re.findall(r"^\| `([\w.]+)` \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(file.name for file in EXAMPLES.iterdir() if file.suffix in (".py", ".ipynb"))


@pytest.mark.program
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_is_for(name: str, tmp_path: Path) -> None:
    command, place = [sys.executable, str(EXAMPLES / f"{name}.py")], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=place, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert re.search(PRINTED[name], done.stdout), done.stdout


@pytest.mark.program
def test_the_notebook_shows_what_its_cells_print() -> None:
    names: dict[str, Any] = {}
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"]
    for cell in [cell for cell in cells if cell["cell_type"] == "code"]:
        out = io.StringIO()
        with redirect_stdout(out):
            exec(compile("".join(cell["source"]), "tour.ipynb", "exec"), names)
        texts = [text for shown in cell["outputs"] for text in shown.get("text", ())]
        assert out.getvalue() == "".join(texts)
