"""What answers at once imports nothing heavy, and a decode nothing that it can do without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.app.conftest import ROOT

# One process obeys several command lines, and notes after each which of the libraries it has imported.
OBEY = """
import json, sys
from contextlib import suppress
watched, lines = json.loads(sys.argv[1])
from dllm.app.command_line.main import main
for line in lines:
    sys.argv = ["run.py", *line]
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code or 0
    note = [line, code, [name for name in watched if name in sys.modules]]
    print("NOTE", json.dumps(note), file=sys.stderr, flush=True)
"""
# A finder that hides everything that ``pip install dllm`` does not bring along.
HIDE = """
import sys
from importlib.metadata import packages_distributions
base = set(json.loads(sys.argv.pop()))
"""


def obey(lines: Sequence[Sequence[str]], watched: Sequence[str], where: Path) -> list[tuple[list[str], int, list[str]]]:
    """(command line, exit code, those of the ``watched`` libraries that were imported by then), line by line."""
    command = [sys.executable, "-c", OBEY, json.dumps([watched, lines])]
    done = subprocess.run(
        command, cwd=where, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60
    )
    notes = [json.loads(line[5:]) for line in done.stderr.splitlines() if line.startswith("NOTE ")]
    assert len(notes) == len(lines), done.stderr[-2000:]
    return [(line, code, found) for line, code, found in notes]


QUICK = {
    0: [["--help"], ["sampler=credit", "--help"], ["--version"], ["--cfg", "job"]],
    2: [
        ["sampler=confidance"], ["sampler.treshold=0.8"], ["gen_lenght=8"], ["static"], ["cache=none", "task=chekc"],
        ["-m", "sampler=static,confidance"], ["-m", "sampler=static", "gen_lenght=8,16"], ["gen_length=many"],
        ["sampler=static,eb"], ["resume=nothing"], ["experiment=small"], ["--hepl"],
    ],
}  # fmt: skip


def test_help_and_misspelt_names_are_answered_without_torch(tmp_path: Path) -> None:
    expected = {tuple(line): code for code, lines in QUICK.items() for line in lines}
    for line, code, found in obey(list(map(list, expected)), ["torch", "transformers", "rich", "numpy"], tmp_path):
        assert (code, found) == (expected[tuple(line)], []), line
