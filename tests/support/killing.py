"""Processes of our own that are killed."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).parents[2]


def killed_after(seconds: float, target: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Run the function in another process and kill it with SIGKILL after so long."""
    other = multiprocessing.get_context("fork").Process(target=target, args=arguments, kwargs=options)
    other.start()
    time.sleep(seconds)
    os.kill(other.pid or 0, signal.SIGKILL)
    other.join()


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file, which change when a process works."""
    found = {}
    for file in folder.glob("**/*"):
        try:
            found[str(file)] = (file.stat().st_size, file.stat().st_mtime_ns)
        except FileNotFoundError:  # renamed in between
            continue
    return found


def hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file that is no scratch of a killed process."""
    files = (file for file in folder.glob("**/*") if file.is_file() and file.suffix != ".tmp")
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@dataclass
class Work:
    """A command line that writes a folder, and the same command again that goes on."""

    arguments: Callable[[Path], list[str]]  # what writes the folder
    span: float = 0.0  # seconds of an undisturbed run, from its first file to its end

    def whole(self, folder: Path) -> None:
        """Run to the end, and measure."""
        process = self._start(folder)
        _until_it_works(process, folder, state_of(folder))
        began = time.monotonic()
        assert process.wait() == 0, process.args
        self.span = time.monotonic() - began

    def kill(self, folder: Path, dice: Random) -> bool:
        """Start, and kill at a moment after the first file was written. Returns whether it was still at work."""
        process = self._start(folder)
        _until_it_works(process, folder, state_of(folder))
        time.sleep(dice.random() * self.span * 0.7)
        process.kill()
        return process.wait() == -signal.SIGKILL

    def _start(self, folder: Path) -> subprocess.Popen[bytes]:
        # not forked: a lock that another thread holds then (tqdm's monitor) stays locked in the fork
        program = [sys.executable, str(ROOT / "run.py"), *self.arguments(folder)]
        return subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _until_it_works(process: subprocess.Popen[bytes], folder: Path, before: dict[str, tuple[int, int]]) -> None:
    while state_of(folder) == before and process.poll() is None:
        time.sleep(0.002)
