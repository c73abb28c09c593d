"""What is published works outside of a checkout: a wheel in an environment of its own; an sdist holds what installs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = "from setuptools import build_meta; print(build_meta.build_{}({!r}))"
pytestmark = pytest.mark.program
# The shipped models need no hub: where the system lends a namespace without a network, commands run in one.
UNSHARE = ["unshare", "--map-root-user", "--net"]
LENT = shutil.which("unshare") and subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0
NO_NETWORK = UNSHARE if LENT else []


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files alone, since building writes beside them."""
    folder = tmp_path_factory.mktemp("source")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("no git repository")
    packed = subprocess.run(["tar", "-c", "--null", "-T", "-"], cwd=ROOT, input=listed.stdout, capture_output=True)
    subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
    return folder


def built(source: Path, kind: str, folder: Path) -> Path:
    """The archive that pip would build, with the setuptools of this environment."""
    code = BUILD.format(kind, str(folder))
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def dllm(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of the wheel. Its environment has what the wheel depends on, and nothing of the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    wheel = built(source, "wheel", folder)
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv/bin/python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        f"--python={python}",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(pip, check=True, timeout=120)
    (own,) = (folder / "venv/lib").glob("python*/site-packages")
    (own / "dependencies.pth").write_text(f"import sys; sys.path.append({sysconfig.get_paths()['purelib']!r})\n")
    return folder / "venv/bin/dllm"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("--version", "dllm "),
        ("--help", "sampler"),
        ("sampler=localleap cache=elastic gen_length=16", "forwards"),
        ("check mini-llada", "LLaDAModelLM"),
        ("list", "mini-dream"),
        ("doctor", "mini-llada sorts a list"),
        ("-m sampler=confidence,eb task=parallelbench task.tasks=[sort] task.count=2 name=cells", "TPF"),
    ],
)
def test_an_installed_wheel_runs_without_checkout_and_network(
    dllm: Path, tmp_path: Path, line: str, shown: str
) -> None:
    place = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    place["XDG_CACHE_HOME"] = str(tmp_path / "caches")  # nothing that another run left
    command = [*NO_NETWORK, dllm, *line.split()]
    done = subprocess.run(command, cwd=tmp_path, env=place, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout + done.stderr
    assert str(ROOT) not in done.stdout + done.stderr


def test_the_wheel_is_what_runs(dllm: Path, tmp_path: Path) -> None:
    place = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = "import dllm; print(dllm.__file__)"
    done = subprocess.run([dllm.parent / "python", "-c", code], cwd=tmp_path, env=place, capture_output=True, text=True)
    assert Path(done.stdout.strip()).is_relative_to(dllm.parents[1]), done.stderr


def test_the_sdist_holds_no_test_that_cannot_run_and_all_that_installing_needs(source: Path, tmp_path: Path) -> None:
    with tarfile.open(built(source, "sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "constraints.txt",
        "LICENSE",
        "README.md",
        "dllm/conf/config.yaml",
        "dllm/py.typed",
    } <= names
    assert not [name for name in names if name.startswith("tests/")]
