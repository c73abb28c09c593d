"""Runs a generated program in a subprocess: limited time, memory, files and processes, and no network.

This keeps a model's mistakes from harming the machine. It does not stop an attacker: for programs that you do not
trust, run the whole evaluation in a container.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from dllm.errors import UserError

JAIL = Path(__file__).with_name("jail.py")
REACHED = 77  # the exit code by which the jail says that the program reached its last line
TAIL = 4096  # bytes of a program's output that are read
MIB = 1 << 20


@dataclass(frozen=True)
class Allowance:
    """What a program may use."""

    seconds: int = 10  # of the CPU, and twice that of the clock
    memory: int = 2048 * MIB  # address space in bytes
    file: int = 16 * MIB  # bytes a file may have
    processes: int = 32  # at a time

    def by_name(self) -> dict[str, int]:
        return {
            "RLIMIT_CPU": self.seconds, "RLIMIT_AS": self.memory, "RLIMIT_FSIZE": self.file,
            "RLIMIT_NPROC": self.processes, "RLIMIT_CORE": 0,
        }  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    passed: bool  # the program reached its last line
    reason: str  # if not, the last line of its output, or what stopped it


def run_program(program: str, limits: Allowance | None = None) -> Outcome:
    """Run ``program`` to its end or its limits. Raises UserError where the system has no such limits (Windows)."""
    if os.name != "posix":
        raise UserError("allow_code=true needs a POSIX system, whose processes can be limited. Use Linux or macOS.")
    limits = limits or Allowance()
    request = json.dumps({"program": program, "limits": limits.by_name(), "reached": REACHED})
    # Its output goes to a file, which the limits bound.
    with TemporaryDirectory(prefix="dllm-") as home, TemporaryFile() as said:
        # None of our variables: no tokens, proxies or PYTHONPATH. One thread, since numpy's count as processes.
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment = {"PATH": os.defpath, "HOME": home, "TMPDIR": home, **threads}
        process = subprocess.Popen(
            [*unshared(), sys.executable, "-I", "-B", str(JAIL)], cwd=home, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True,
        )  # fmt: skip
        try:
            process.communicate(request.encode(), timeout=2 * limits.seconds)
        except subprocess.TimeoutExpired:
            return Outcome(False, f"stopped after {2 * limits.seconds} s")
        finally:
            kill(process)
        said.seek(max(0, said.seek(0, os.SEEK_END) - TAIL))
        return Outcome(process.returncode == REACHED, reason(process.returncode, said.read().decode(errors="replace")))


def kill(process: subprocess.Popen[bytes]) -> None:
    """The program and all it started; with a process namespace of its own nothing survives."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def reason(code: int, said: str) -> str:
    if code == REACHED:
        return ""
    last = said.strip().splitlines()[-1:] or [f"ended with code {code} before its last line"]
    return signal.Signals(-code).name if code < 0 else last[0][:500]


@cache
def unshared() -> tuple[str, ...]:
    """The command that gives a process no network and a process table of its own, where the system allows it.

    Without it (macOS, some containers) the audit hook of ``jail`` alone refuses sockets and processes.
    """
    if shutil.which("unshare") is None:
        return ()
    isolation = ("--net", "--pid", "--fork", "--kill-child", "--ipc")
    for command in (("unshare", "--map-root-user", *isolation), ("unshare", *isolation)):
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    return ()
