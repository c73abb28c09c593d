"""What a contributor's tools run is what ``make`` runs, and every target of make is documented."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_help_names_every_target_of_make() -> None:
    targets = re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE)
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=20).stdout
    assert re.findall(r"^  make (\w+) +\S", shown, re.MULTILINE) == targets
    assert set(re.findall(r"\w+", MAKEFILE.partition(".PHONY:")[2].splitlines()[0])) == set(targets)


def test_ci_runs_make_test_on_every_python_that_the_package_takes() -> None:
    job = read(".github/workflows/ci.yml")["jobs"]["test"]
    assert [step["run"] for step in job["steps"] if "run" in step][-1] == "make test"
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert f">={job['strategy']['matrix']['python'][0]}" == oldest


def test_hooks_run_what_make_lint_runs() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"  # of the versions in .venv, no others
    lint = re.findall(r"\$\(BIN\)/(\w+)", MAKEFILE.partition("\nlint:")[2].partition("\n\n")[0])
    assert [hook["entry"].split()[0] for hook in repository["hooks"]] == [f".venv/bin/{tool}" for tool in lint]
