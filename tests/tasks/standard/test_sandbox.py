"""Generated programs: what they may do, and what stops them."""

from __future__ import annotations

import importlib.util
import os
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from harness import full

from dllm.parts import Allowance, Outcome, run_program, run_within
from dllm.tasks.standard import sandbox
from tests.tasks.standard.escapes import ESCAPES, Escape

SHORT = Allowance(seconds=1)
DAILY = 8  # escapes of ``make test``

KINDS = ("namespaces", "landlock", "none")


BY_KIND = [pytest.param(kind, marks=[pytest.mark.program] * (kind != "namespaces")) for kind in KINDS]


@pytest.fixture(params=BY_KIND)
def wall(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Within namespaces, and where the system gives none, or not even Landlock."""
    kind = str(request.param)
    needs(kind)
    monkeypatch.setattr(sandbox, "walls", lambda: kind)
    return kind


@cache
def given(kind: str) -> bool:
    return run_within(kind, "", SHORT).passed


def needs(kind: str) -> None:
    if not given(kind):
        pytest.skip(f"this system gives no {kind}")


@pytest.mark.parametrize("kind", BY_KIND)
def test_nothing_passes_without_an_end_or_gets_out(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one batch of threads. Slow programs are for DLLM_LAWS=all, the weaker walls for ``make test-programs``; of the
    rest LAWS_SEED draws some for ``make test``."""
    needs(kind)
    escapes = [escape for escape in ESCAPES if full() or not escape.slow]
    escapes = [escape for escape in escapes if escape.name not in OPEN[kind]]
    if kind == "namespaces" and not full():
        escapes = random.Random(os.environ.get("LAWS_SEED", "0")).sample(escapes, DAILY)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "homes"))
    (tmp_path / "homes").mkdir()
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(escaped, kind, escape, tmp_path / f"{number}") for number, escape in enumerate(escapes)]
    assert [escape.name for escape, was in zip(escapes, found, strict=True) if was.result()] == []
    assert not any((tmp_path / "homes").iterdir())


# What is open, as the warning says. The hook is told neither of files by an open folder nor of pipes and nodes.
OPEN = {
    "namespaces": (),
    "landlock": ("640 MB of files",),
    "none": ("640 MB of files", "/etc/passwd", "dir_fd", "mkfifo", "mknod", "a race of chdir"),
}


def escaped(kind: str, escape: Escape, there: Path) -> bool:
    there.mkdir()
    (there / "keep").touch()
    program = escape.program.format(there=there, us=os.getpid()) if "{" in escape.program else escape.program
    passed = run_within(kind, program, Allowance(seconds=2)).passed
    if escape.slow and escape.mark not in ("", "-"):
        time.sleep(1.5)
    return passed if not escape.mark else (there / escape.mark).exists()


@pytest.mark.program
def test_namespaces_hold_without_the_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("namespaces")
    jail = tmp_path / "jail.py"
    text = sandbox.JAIL.read_text().replace("sys.addaudithook(", "(").replace("    forbid_processes()\n", "")
    jail.write_text(text)
    monkeypatch.setattr(sandbox, "JAIL", jail)
    outside = [escape for escape in ESCAPES if escape.mark not in ("", "-")]
    assert [one.name for n, one in enumerate(outside) if escaped("namespaces", one, tmp_path / f"{n}")] == []
    bomb = "import os,time\nfor i in range(100):\n if os.fork() == 0: time.sleep(9)"
    assert "BlockingIOError" in run_within("namespaces", bomb, SHORT).reason
    assert not run_within("namespaces", "import os\nos.remount=1\nopen(os.__file__, 'a')", SHORT).passed


def test_the_walls_of_this_system_are_tried_once_and_what_is_open_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sandbox, "_kinds", [])
    tried: list[str] = []
    monkeypatch.setattr(sandbox, "run_within", lambda kind, *rest: tried.append(kind) or Outcome(False, ""))
    assert (sandbox.walls(), sandbox.walls()) == ("none", "none") and tried == ["namespaces", "landlock"]
    assert capsys.readouterr().err.count("Warning: this system has neither") == 1


def test_a_right_program_passes_and_a_wrong_one_says_why(wall: str) -> None:
    assert run_program("import math\nassert math.gcd(12, 18) == 6").passed
    outcome = run_program("assert 1 + 1 == 3, 'sums'")
    assert not outcome.passed and outcome.reason == "AssertionError: sums"
    assert "SyntaxError" in run_program("def f(:").reason


@pytest.mark.program
def test_an_endless_loop_is_stopped_by_the_cpu_limit_and_sleep_by_the_clock(wall: str) -> None:
    began = time.monotonic()
    assert not run_program("while True: pass", SHORT).passed
    outcome = run_program("import time; time.sleep(60)", SHORT)
    assert outcome.reason == "stopped after 2 s" and time.monotonic() - began < 10


def test_memory_is_limited(wall: str) -> None:
    assert "MemoryError" in run_program("x = bytearray(1 << 31)", Allowance(memory=256 << 20)).reason


def test_files_are_limited_in_size_and_place(wall: str, tmp_path: Path) -> None:
    assert run_program("open('note', 'w').write('x' * 1000)").passed
    assert not run_program("open('big', 'wb').write(b'x' * (1 << 20))", Allowance(file=1 << 16)).passed
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for attempt in (f"open({str(victim)!r}, 'w')", f"import os; os.remove({str(victim)!r})", "open('../up', 'w')"):
        assert "Error" in run_program(attempt).reason
    assert victim.read_text() == "mine"
    there = str(tmp_path)
    moves = (
        f"os.chdir({there!r}); open('new', 'w')",
        f"os.mkdir({there + '/new'!r})",
        f"open('a', 'w'); os.rename('a', {there + '/new'!r})",
        f"os.remove('victim', dir_fd=os.open({there!r}, os.O_RDONLY))",
    )
    for attempt in moves:
        assert "Error" in run_program(f"import os; {attempt}").reason
    assert [file.name for file in tmp_path.iterdir()] == ["victim"]
    program = "import os, tempfile\nwith tempfile.NamedTemporaryFile('w') as f: f.write('x')\nos.mkdir('a')"
    assert run_program(program).passed


def test_what_a_program_says_may_be_any_bytes_and_any_amount(wall: str) -> None:
    outcome = run_program("import sys\nsys.stderr.buffer.write(b'\\xff'); raise ValueError('no')")
    assert not outcome.passed and outcome.reason == "ValueError: no"
    endless = "import sys\nwhile True: sys.stderr.write('x' * 10**6)"
    assert not run_program(endless, Allowance(seconds=1, file=1 << 20)).passed


def test_numpy_works(wall: str) -> None:
    """It is in every installation, with torch, but not where this test may look for it: only its import of ctypes."""
    assert run_program("try:\n    import ctypes; ctypes.CDLL(None)\nexcept ImportError:\n    pass").passed
    if importlib.util.find_spec("numpy"):
        assert run_program("import numpy as np\nassert np.ones(3).sum() == 3").reason == ""


@pytest.mark.daily(6)  # of three walls
@pytest.mark.parametrize(
    "attempt",
    [
        "import socket; socket.create_connection(('127.0.0.1', 9), timeout=1)",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9', timeout=1)",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "import os; os.fork()",
        "import os; os.kill(1, 9)",
        "import ctypes; ctypes.CDLL(None)",
    ],
)
def test_network_processes_and_native_code_are_refused(attempt: str, wall: str) -> None:
    outcome = run_program(attempt)
    assert not outcome.passed and "not allowed" in outcome.reason


@pytest.mark.program
def test_a_fork_bomb_leaves_nothing_behind(wall: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # which every descendant has in its environment
    assert not run_program("import os\nwhile True: os.fork()", SHORT).passed
    threads = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()"
    assert not run_program(threads, SHORT).passed
    deadline = time.monotonic() + 10  # the kernel takes a moment to reap what was killed
    while left_over(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left_over(tmp_path)


def left_over(folder: Path) -> list[str]:
    """Processes that have ``folder`` in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            found += [process.parent.name] * (str(folder).encode() in process.read_bytes())
    return found


def test_the_program_sees_none_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert run_program("import os\nassert 'HF_TOKEN' not in os.environ").passed
    assert run_program("import sys\nassert 'torch' not in sys.modules").passed
