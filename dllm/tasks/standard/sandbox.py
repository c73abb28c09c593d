"""Runs a generated program within walls: limited time, memory, files and processes, no network, and no view of us.

The walls are Linux namespaces (``walls``). Where the system gives none, a warning says what is left: for programs that
you do not trust, run the whole evaluation in a container or a virtual machine.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from threading import Lock

from dllm.common.errors import UserError
from dllm.common.terminal import complain

WALLS, JAIL = (Path(__file__).with_name(name) for name in ("walls.py", "jail.py"))
TAIL = 4096  # bytes of a program's output that are read
MIB = 1 << 20
_OPEN = {
    "landlock": "this system gives no namespaces, so programs that the model writes can fill the disk and reach the "
    "network. Files and other processes are kept from them by Landlock",
    "none": "this system has neither namespaces nor Landlock, so only an audit hook keeps programs that the model "
    "writes from your files, the network and other processes. It stops accidents",
}


@dataclass(frozen=True)
class Allowance:
    seconds: int = 10  # of the CPU, and twice that of the clock
    memory: int = 2048 * MIB  # address space in bytes
    file: int = 16 * MIB  # bytes a file may have
    processes: int = 32  # at a time

    def by_name(self) -> dict[str, int]:
        return {
            "RLIMIT_CPU": self.seconds,
            "RLIMIT_AS": self.memory,
            "RLIMIT_FSIZE": self.file,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_CORE": 0,
            "RLIMIT_NOFILE": 256,
        }


@dataclass(frozen=True)
class Outcome:
    passed: bool  # the program reached its last line
    reason: str  # if not, the last line of its output, or what stopped it


def run_program(program: str, limits: Allowance | None = None) -> Outcome:
    """Run ``program`` to its end or its limits. Raises UserError where the system has no such limits (Windows)."""
    if os.name != "posix":
        raise UserError("allow_code=true needs a POSIX system, whose processes can be limited. Use Linux or macOS.")
    return run_within(walls(), program, limits or Allowance())


def run_within(kind: str, program: str, limits: Allowance) -> Outcome:
    """As ``run_program``, within walls of one kind."""
    word = secrets.token_hex(32)  # of this run alone: all that tells that the last line was reached
    reader, pipe = os.pipe()
    home = mkdtemp(prefix="dllm-")
    try:
        job = {"program": program, "limits": limits.by_name(), "word": word, "pipe": pipe}
        with TemporaryFile() as out:  # a file, whose size is limited
            process = _start(kind, home, pipe, out.fileno())
            late = not _ends_in_time(process, json.dumps(job).encode(), 2 * limits.seconds)
            os.set_blocking(reader, False)
            passed = not late and word_in(reader) == word
            out.seek(max(0, out.seek(0, os.SEEK_END) - TAIL))
            output = out.read().decode(errors="replace")
        why = f"stopped after {2 * limits.seconds} s" if late else reason(process.returncode, output)
        return Outcome(passed, "" if passed else why)
    finally:
        os.close(reader)
        os.close(pipe)
        remove_tree(home)


def word_in(pipe: int) -> str:
    with suppress(BlockingIOError):
        return os.read(pipe, 4096).decode(errors="replace")
    return ""


def _start(kind: str, home: str, pipe: int, output: int) -> subprocess.Popen[bytes]:
    """The walls' own process. Its environment has none of our variables: no tokens, proxies or PYTHONPATH."""
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # numpy's threads count as processes
    folders = dict.fromkeys((sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix))
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", str(WALLS), kind, str(JAIL), sys.executable, *folders],
        cwd=home,
        env={"PATH": os.defpath, "HOME": home, "TMPDIR": home, **threads},
        pass_fds=(pipe,),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=output,
        start_new_session=True,
    )


def _ends_in_time(process: subprocess.Popen[bytes], request: bytes, seconds: float) -> bool:
    """Whether the program ended in time; afterwards it has ended, and all it started."""
    try:
        process.communicate(request, timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    finally:
        kill(process)
    return True


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ask the walls to end all that is within; without an answer, end them."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def reason(code: int, output: str) -> str:
    number = -code if code < 0 else code - 128
    if number > 0:
        return {each.value: each.name for each in signal.Signals}.get(number, f"signal {number}")
    return (output.strip().splitlines()[-1:] or [f"ended with code {code} before its last line"])[0][:500]


def remove_tree(folder: str) -> None:
    """Remove ``folder`` with all in it, however deep and without rights: what is within a folder is first moved up."""
    top = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # what a process left that could not be ended
        number = 0
        while names := os.listdir(top):  # noqa: PTH208
            for name in names:
                try:
                    os.unlink(name, dir_fd=top)
                except (IsADirectoryError, PermissionError):
                    os.chmod(name, 0o700, dir_fd=top)
                    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
                    for each in os.listdir(inner):  # noqa: PTH208
                        number += 1
                        os.rename(each, f"{number}.", src_dir_fd=inner, dst_dir_fd=top)
                    os.close(inner)
                    os.rmdir(name, dir_fd=top)
        Path(folder).rmdir()
    os.close(top)


_lock = Lock()
_kinds: list[str] = []  # the kind of walls, once they were tried


def walls() -> str:
    """The best walls that this system has, tried by a program. What is open is said once."""
    with _lock:
        if not _kinds:
            kinds = ("namespaces", "landlock")
            _kinds.append(next((kind for kind in kinds if run_within(kind, "", Allowance()).passed), "none"))
            if _kinds[0] in _OPEN:
                complain(f"Warning: {_OPEN[_kinds[0]]}. For code that you do not trust, run dllm in a virtual machine.")
        return _kinds[0]
