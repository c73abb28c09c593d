"""The cells of ``tests``: files of ``tests/gpu``, each by pytest in a process of its own, all at once.

Most of their time the host compiles kernels, on one core each, and the GPU waits.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from experiments.gpu_hour.store import ROOT

TAIL = 1500  # characters of what pytest printed that are kept where it did not even collect
LIMIT = 4.0  # times the estimate


class TestsFailed(Exception):
    """Tests that failed, named in the message."""

    __test__ = False


class Suite:
    """Pytest over the files of some cells. The first cell that is asked for starts the processes of all that are left;
    each waits for its own."""

    def __init__(self, cells: Mapping[str, tuple[list[str], float]], device: str, folder: Path) -> None:
        """cells: what pytest selects and the seconds expected, by name. folder: keeps what pytest printed."""
        self.cells, self.device, self.folder = dict(cells), device, folder
        self.started: dict[str, subprocess.Popen[str]] = {}

    def __call__(self, name: str, left: Callable[[str], bool]) -> dict[str, Any]:
        """How many of the cell's tests passed and were skipped, and why. left: whether a cell of that name is still to
        be run. Raises TestsFailed if one failed or none ran."""
        if not self.started:
            self.folder.mkdir(parents=True, exist_ok=True)
            atexit.register(self.end)  # what outlives the time that was given
            for one in self.cells:
                if one == name or left(one):
                    self.started[one] = self._start(one)
        process, file, seconds = self.started[name], self._file(name), self.cells[name][1]
        try:
            process.wait(LIMIT * seconds + 60)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise TestsFailed(f"it took longer than {error.timeout:.0f} s") from None
        if not file.exists():
            printed = file.with_suffix(".log").read_text()
            raise TestsFailed(f"pytest ended with {process.returncode}: {printed[-TAIL:]}")
        return outcomes(file)

    def _file(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '_')}.xml"

    def _start(self, name: str) -> subprocess.Popen[str]:
        file = self._file(name)
        file.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={file}",
            *self.cells[name][0],
        ]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        threads = str(max(1, (os.cpu_count() or 1) // len(self.cells)))
        environment = {"OMP_NUM_THREADS": threads, **os.environ, "DLLM_DEVICE": self.device, "PYTHONPATH": path}
        with file.with_suffix(".log").open("w") as log:
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)

    def end(self) -> None:
        for process in self.started.values():
            process.kill()


def outcomes(file: Path) -> dict[str, Any]:
    """The counts of a JUnit file, with what skipped and rounding tests said. Raises TestsFailed as ``Suite`` does."""
    counts, notes, failed = Counter[str](), Counter[str](), []
    for case in ElementTree.parse(file).iter("testcase"):
        kind = next((one.tag for one in case if one.tag in ("failure", "error", "skipped")), "passed")
        message = next((one.get("message") or "" for one in case if one.tag == kind), "").splitlines()
        counts["failed" if kind in ("failure", "error") else kind] += 1
        if kind == "skipped":
            notes[message[0] if message else ""] += 1
        elif kind != "passed":
            failed.append(f"{case.get('name')}: {message[0][:160] if message else kind}")
    if failed or not counts["passed"]:
        named = "; ".join(failed[:8]) + ("; ..." if len(failed) > 8 else "")
        raise TestsFailed(f"{len(failed)} of {counts.total()} tests failed. {named or 'None ran.'}")
    return {**counts, "notes": dict(notes.most_common(8))}
