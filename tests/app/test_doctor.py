"""``dllm doctor`` in installations that are broken: sentences, and never a traceback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tomllib
import venv
from errno import ENOSPC
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dllm.app.commands import doctor
from tests.app.conftest import ROOT

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
LACKS = "raise ImportError('libcudart.so.12: cannot open shared object file')"


class Told(NamedTuple):
    code: int
    lines: dict[str, str]  # what each is about -> its level and words, with the advice below it
    err: str


def told(where: Path, *words: str, python: str = sys.executable, **more: str) -> Told:
    """What the doctor says where files of ``where`` go before what is installed."""
    place = {**os.environ, "PYTHONPATH": os.pathsep.join((str(where), str(ROOT))), **more}
    command = [python, "-m", "dllm", "doctor", *words]
    done = subprocess.run(command, cwd=where, env=place, capture_output=True, text=True, timeout=200)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    lines = dict[str, str]()
    for line in done.stdout.splitlines():
        level, what, says = line[:8].strip(), line[9:23].strip(), line[24:]
        if level in (doctor.OK, doctor.NOTE, doctor.PROBLEM):
            lines[what] = f"{level} {says}"
        elif lines and not level:
            lines[what := [*lines][-1]] += f" {says}"
    return Told(done.returncode, lines, done.stderr)


def package(where: Path, name: str, code: str) -> Path:
    (where / name).mkdir()
    (where / name / "__init__.py").write_text(code + "\n")
    return where


@pytest.mark.program
def test_where_nothing_is_broken_but_what_is_around_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # a folder that cannot be made, for root as well
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        whole = told(tmp_path, CC="nothing-compiles", XDG_CACHE_HOME=str(tmp_path / "file"))
    assert whole.code == 0 and whole.err == ""
    for what in ("Python", "packages", "torch", "memory", "runs", "scratch", "a decode"):
        assert whole.lines[what].startswith("ok "), what
    assert whole.lines["C compiler"].startswith("note none") and "gcc" in whole.lines["C compiler"]
    assert "takes no files (Not a directory)" in whole.lines["caches"] and "XDG_CACHE_HOME" in whole.lines["caches"]
    assert whole.lines["hub models"].startswith("note ") and "HF_HOME" in whole.lines["hub models"]


def test_a_python_without_any_library(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    bare = told(tmp_path, python=str(tmp_path / "bare/bin/python"))
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert bare.code == 1 and f"{len(needed)} problems." in bare.err
    assert bare.lines["torch"] == f"problem torch is missing. pip install -e {ROOT}"
    assert bare.lines["hydra"].startswith("problem hydra-core is missing.")
    assert bare.lines["[serve]"].startswith("note dllm serve: starlette is missing, uvicorn is missing, ")
    assert bare.lines["[serve]"].endswith(f"pip install -e '{ROOT}[serve]'")
    assert bare.lines["runs"].startswith("ok ") and "port" in bare.lines and "a decode" not in bare.lines


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (LACKS, "it cannot be imported (ImportError: libcudart.so.12: cannot open shared object file)"),
        (DIES, "Python ended with code -11"),
        ("raise SystemExit(3)", "Python ended with code 3"),
    ],
)
def test_a_torch_that_cannot_be_imported(code: str, said: str, tmp_path: Path) -> None:
    broken = told(package(tmp_path, "torch", code))
    assert broken.code == 1 and "Begin with the first" in broken.err and broken.lines["torch"].startswith("problem ")
    assert said in broken.lines["torch"] and "pip install --force-reinstall 'torch>=" in broken.lines["torch"]
    assert broken.lines["runs"].startswith("ok ") and "a decode" not in broken.lines


def test_an_antlr_that_is_not_hydras(tmp_path: Path) -> None:
    metadata = tmp_path / "antlr4_python3_runtime-4.13.2.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: antlr4-python3-runtime\nVersion: 4.13.2\n")
    clash = told(package(tmp_path, "torch", LACKS))
    assert clash.lines["antlr4"].startswith("problem antlr4-python3-runtime 4.13.2 is here, and ==4.9 is needed.")
    assert clash.lines["antlr4"].endswith(f"pip install -e {ROOT}") and "a decode" not in clash.lines


def test_no_home_and_a_taken_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    (finding,) = doctor.guarded("caches", doctor.of_caches)
    assert finding.level == doctor.PROBLEM and "Set HOME or XDG_CACHE_HOME to a folder" in finding.says
    monkeypatch.setattr(socket.socket, "bind", refusing(OSError(98, "Address already in use")))
    (finding,) = doctor.of_port()
    assert finding[:3] == (doctor.NOTE, "port", "8000 is not free (Address already in use).")
    assert "task.port=0" in finding.advice


def refusing(error: Exception) -> Any:
    def refuse(*_: object, **__: object) -> None:
        raise error

    return refuse


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(least: float = 0.1) -> doctor.Finding:
        return doctor.of_folder("runs", tmp_path / "not/there/yet", doctor.PROBLEM, least, "Make room.")

    assert look().level == doctor.OK and not (tmp_path / "not").exists() and not [*tmp_path.iterdir()]
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(2**30, 2**30 - 2**20, 2**20))
    assert look()[::2] == (doctor.PROBLEM, f"{tmp_path}/not/there/yet has 0.00 GiB left; 0.1 are wanted.")
    monkeypatch.setattr("tempfile.TemporaryFile", refusing(OSError(ENOSPC, os.strerror(ENOSPC))))
    assert look(0).says.endswith("takes no files (No space left on device).") and look(0).advice == "Make room."


def test_every_extra_of_a_user_has_its_use_and_its_line() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*extras} - {*doctor.EXTRAS} == {"docs", "frameworks", "extras", "dev", "sglang"}
    assert {*doctor.EXTRAS} <= {*extras}


@pytest.mark.parametrize(
    ("requirement", "fault"),
    [
        ("here>=2.9", None),
        ("here>=2.10,<3", None),
        ("here[all]>=2.10.1; python_version > '3'", None),
        ("here>=2.11", ">=2.11"),
        ("here>=1,<2.10", "<2.10"),
        ("here (==2.10.*)", None),
        ("here (==2.9.*)", "==2.9"),
    ],
)
def test_versions_that_are_wanted(requirement: str, fault: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version_of", lambda name: "2.10.1+cpu" if name == "here" else None)
    said = doctor.fault_of(requirement)
    assert said == (fault and f"here 2.10.1+cpu is here, and {fault} is needed")
    assert doctor.fault_of("other>=1") == "other is missing"


def test_an_older_python_and_libraries_that_fail_are_told_before_they_are_read(tmp_path: Path) -> None:
    old = "import sys; sys.version_info = (3, 9, 1); from dllm.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", old], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr == (
        "Error: this is Python 3.9, and dllm needs 3.11 or newer. Install it in an environment of a newer one.\n"
    )
    place = {**os.environ, "PYTHONPATH": os.pathsep.join((str(package(tmp_path, "torch", LACKS)), str(ROOT)))}
    done = subprocess.run(
        [sys.executable, "-m", "dllm", "gen_length=8"],
        cwd=tmp_path,
        env=place,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2 and done.stderr == (
        "Error: a library cannot be imported (libcudart.so.12: cannot open shared object file). "
        "python -m dllm doctor says what is wrong here.\n"
    )
