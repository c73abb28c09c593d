"""What a contributor's tools run is what ``make`` runs, and every target of make is documented."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.draw import drawn_by

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_help_names_every_target_of_make() -> None:
    targets = re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=20).stdout
    assert re.findall(r"^  make ([\w-]+) +\S", shown, re.MULTILINE) == targets
    assert set(re.findall(r"[\w-]+", MAKEFILE.partition(".PHONY:")[2].splitlines()[0])) == set(targets)


def test_ci_runs_every_part_of_the_tests_and_the_oldest_python() -> None:
    parts = set(re.findall(r"^(test[a-z-]*):", MAKEFILE, re.MULTILINE))
    matrix = read(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert {*matrix["part"], *(one["part"] for one in matrix["include"])} == parts
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert f">={matrix['python'][0]}" == oldest
    assert (ROOT / ".ci/run").read_text().splitlines()[-2:] == ["make test", "make check-drawn"]


def test_check_leaves_out_no_test_that_this_machine_can_run(clone: Path) -> None:
    lines = [call for call in make(clone, "check") if "pytest" in call]
    sample = "--part sample -m not program --ignore=tests/experiments"
    assert lines == [f"python -m pytest -n 2 --dist worksteal {part}" for part in (sample, "--part others")]
    assert re.search(r"^check-others:[^\n]*\n\tDLLM_DEVICE=cpu ", MAKEFILE, re.MULTILINE), "tests/gpu on the CPU"


def test_slow_tests_are_there() -> None:
    listed = (ROOT / "tests/slow.txt").read_text().splitlines()
    assert listed == sorted(set(listed))
    for line in listed:
        file, _, name = line.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), line


def test_hooks_run_what_make_lint_runs() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"  # of the versions in .venv, no others
    lint = re.findall(r"\$\(BIN\)/(\w+)", MAKEFILE.partition("\nlint:")[2].partition("\n\n")[0])
    assert [hook["entry"].split()[0] for hook in repository["hooks"]] == [f".venv/bin/{tool}" for tool in lint]


def make(folder: Path, *arguments: str) -> list[str]:
    """What ``make`` does in a folder whose programs only note that they were called: their names and arguments."""
    log = folder / "log"
    log.write_text("")
    command = ["make", *arguments, f"PYTHON={folder / '.venv/bin/python'}"]
    alone = {"PATH": os.environ["PATH"]}  # without what an outer make hands down
    subprocess.run(command, cwd=folder, env=alone, capture_output=True, check=True, timeout=20)
    return log.read_text().splitlines()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of three files, with programs that note their calls."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in ("python", "pip", "ruff", "mypy"):
        program = tmp_path / ".venv/bin" / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/log\n')
        program.chmod(0o755)
    return tmp_path


def installed(calls: list[str]) -> list[str]:
    return [call.rpartition("constraints.txt")[2].strip() for call in calls if call.startswith("pip")]


def test_make_run_installs_what_running_needs_and_make_test_the_rest(clone: Path) -> None:
    first = make(clone, "run")
    assert installed(first) == ["torch", "-e ."] and first[-1] == "python run.py animate=true"
    assert make(clone, "run") == ["python run.py animate=true"], "an installed .venv is left alone"
    tested = make(clone, "test")
    assert (
        installed(tested) == ["-e .[dev]"]
        and tested[-1]
        == "python -m pytest -n 2 --dist worksteal --part sample -m not program --ignore=tests/experiments"
    )
    assert installed(make(clone, "test") + make(clone, "run")) == []


def test_a_build_of_pytorch_can_be_chosen(clone: Path) -> None:
    assert installed(make(clone, "run", "TORCH_INDEX=URL")) == ["--extra-index-url URL torch", "-e ."]


def test_a_changed_list_of_dependencies_is_installed_anew(clone: Path) -> None:
    make(clone, "test")
    os.utime(clone / "constraints.txt", (2e9, 2e9))  # later than the stamps
    assert installed(make(clone, "test")) == ["torch", "-e .", "-e .[dev]"]


def test_no_code_is_ignored_by_git_or_by_the_linter_that_follows_it() -> None:
    """``runs/`` alone would mean dllm/app/runs too."""
    folders = (ROOT / name for name in ("dllm", "experiments", "tests"))
    files = "\n".join(str(file.relative_to(ROOT)) for folder in folders for file in folder.rglob("*.py"))
    command = ["git", "check-ignore", "--no-index", "--stdin"]  # exit code 1: none; 0: some; 128: no git here
    found = subprocess.run(command, cwd=ROOT, input=files, capture_output=True, text=True)
    assert "dllm/app/runs/plan.py" in files and (found.returncode in (1, 128)), found.stdout


def test_a_drawn_share_keeps_the_laws_of_a_case_together() -> None:
    first, second = (
        {case for case in range(400) if drawn_by("a commit", f"tests/test_x.py::test_{law}[{case}]") < 0.3}
        for law in "ab"
    )
    assert first == second and 80 < len(first) < 160
    assert first != {case for case in range(400) if drawn_by("another", f"tests/test_x.py::test_a[{case}]") < 0.3}
