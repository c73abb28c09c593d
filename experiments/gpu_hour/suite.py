"""The cells of ``tests``: files of ``tests/gpu``, each by pytest in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from experiments.gpu_hour.store import ROOT

TAIL = 1500  # characters of what pytest printed that are kept where it did not even collect
LIMIT = 4.0  # times the estimate


class TestsFailed(Exception):
    """Tests that failed, named in the message."""

    __test__ = False


def run_tests(selection: list[str], device: str, seconds: float) -> dict[str, Any]:
    """How many of the selected tests passed and were skipped, and why. Raises TestsFailed if one failed or none ran."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={file}", *selection]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "DLLM_DEVICE": device, "PYTHONPATH": path}
        try:
            ended = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT * seconds + 60)
        except subprocess.TimeoutExpired as error:
            raise TestsFailed(f"it took longer than {error.timeout:.0f} s") from None
        if not file.exists():
            raise TestsFailed(f"pytest ended with {ended.returncode}: {(ended.stdout + ended.stderr)[-TAIL:]}")
        return outcomes(file)


def outcomes(file: Path) -> dict[str, Any]:
    """The counts of a JUnit file, with what skipped and rounding tests said. Raises TestsFailed as ``run_tests``."""
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
