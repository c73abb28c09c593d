"""What answers at once imports nothing heavy, and a decode nothing that ``pip install dllm`` leaves out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.app.conftest import ROOT

# One process obeys several command lines, and notes after each its exit code and which of the libraries are imported.
OBEY = """
import json, sys
watched, hidden, lines = json.loads(sys.argv[1])

class Finder:
    "Finds what ``own`` finds, but for the hidden libraries."
    def __init__(self, own):
        self.own = own
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.own.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.own, name)

sys.meta_path[:] = map(Finder, sys.meta_path)
from dllm.app.command_line.main import main
for line in lines:
    sys.argv, code = ["run.py", *line], 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code or 0
    print("NOTE", json.dumps([code, [name for name in watched if name in sys.modules]]), file=sys.stderr, flush=True)
"""
Note = tuple[int, list[str], str]  # exit code, libraries imported by then, what went to stderr


def run_lines(lines: Sequence[str], where: Path, watched: Sequence[str], hidden: Sequence[str] = ()) -> list[Note]:
    """What became of each command line."""
    task = json.dumps([list(watched), list(hidden), [line.split() for line in lines]])
    place = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", OBEY, task]
    done = subprocess.run(command, cwd=where, env=place, capture_output=True, text=True, timeout=100)
    said, found = "", []
    for text in done.stderr.splitlines(keepends=True):
        if text.startswith("NOTE "):
            found.append((*json.loads(text[5:]), said))
        said = "" if text.startswith("NOTE ") else said + text
    assert len(found) == len(lines), done.stderr[-2000:]
    return found


QUICK = {
    0: ["--help", "sampler=credit --help", "run --help", "serve --help", "report --help", "--version", "--cfg job"],
    2: [
        "sampler=confidance", "constraint=regx", "constraint.pattern=a",
        "sampler.treshold=0.8", "gen_lenght=8", "static", "run nosuch x", "task=chekc", "sampler=static,eb",
        "-m sampler=static,confidance", "-m sampler=static gen_lenght=8,16", "gen_length=many", "resume=nothing",
        "experiment=small", "sampler/inner=eb", "--hepl",
    ],
}  # fmt: skip


@pytest.mark.program
def test_help_and_misspelt_names_are_answered_without_torch(tmp_path: Path) -> None:
    lines = [(line, code) for code, lines in QUICK.items() for line in lines]
    notes = run_lines([line for line, _ in lines], tmp_path, ["torch", "transformers", "numpy", "rich"])
    for (line, code), note in zip(lines, notes, strict=True):
        assert note[:2] == (code, []), line


def needed(name: str) -> Iterator[str]:
    """A distribution's own requirements, without its extras."""
    try:
        given = requires(name) or []
    except PackageNotFoundError:  # for another platform
        given = []
    yield from (entry.name for entry in map(Requirement, given) if not entry.marker or entry.marker.evaluate())


def base_install() -> set[str]:
    """Distributions that ``pip install dllm`` brings along."""
    todo = [Requirement(entry).name for entry in project()["dependencies"]]
    found: set[str] = set()
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name not in found:
            found.add(name)
            todo += needed(name)
    return found


def project() -> dict[str, list[str]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def left_out() -> list[str]:
    """Modules at the top of distributions that the base install leaves out."""
    base = base_install()
    ours = {name.lower().replace("_", "-") for name in ("dllm", "pip", "setuptools", *base)}
    owners = packages_distributions().items()
    return [module for module, names in owners if not {name.lower().replace("_", "-") for name in names} & ours]


DECODES = [
    "name=one sampler=prophet cache=prefix trace=true",
    "resume=runs/one",
    "model=mini-dream compare=true",
    "task=check model.path=mini-llada",
    "task=replay trace=runs/one/traces/1-0.json",
    "task=parallelbench task.tasks=[copy] task.count=1",
    "constraint=regex constraint.pattern=[0-9]{4} gen_length=8",
]
REFUSED = {
    "model.quantize=float8": "model.dtype=bfloat16",
    "engine=ray task=parallelbench": "[ray]'",
    "task=serve": "[serve]'",
    "task=gsm8k": "[eval]'",
    "kernels=triton": "kernels=torch",
    "constraint=grammar constraint.grammar=start:/a/": "[constraints]'",
    "constraint=json_schema constraint.schema={type:null}": "[constraints]'",
    "-m hydra/launcher=joblib sampler=static,eb": "[sweeps]'",
}


@pytest.mark.program
def test_the_base_install_decodes_and_names_what_it_lacks(tmp_path: Path) -> None:
    hidden = left_out()
    assert {"transformers", "pandas", "matplotlib", "lm_eval", "pytest"} <= set(hidden)
    notes = run_lines([*DECODES, *REFUSED], tmp_path, ["torch", "torch._dynamo", "torch._inductor", *hidden], hidden)
    for line, (code, found, said) in zip(DECODES, notes[: len(DECODES)], strict=True):
        assert (code, found) == (0, ["torch"]), f"{line}: {said}"
    for (line, words), (code, found, said) in zip(REFUSED.items(), notes[len(DECODES) :], strict=True):
        assert (code, found) == (2, ["torch"]) and said.startswith("Error: ") and words in said, f"{line}: {said}"
