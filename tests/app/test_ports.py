"""Every socket on which a command listens is on 127.0.0.1, unless it was told otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.app.conftest import QUESTIONS, ROOT

pytestmark = pytest.mark.program
SWEEP = ["-m", *QUESTIONS, "+task.count=3", "sampler=static,eb"]
COMMANDS = {
    "run": ["prompt=Latin square: A,B,C,D"], "two ranks": ["prompt=Latin square: A,B,C,D", "model.tp=2"],
    "evaluation of two ranks": [*QUESTIONS, "+task.count=3", "model.tp=2"], "sweep": SWEEP,
    "sweep of two ranks": [*SWEEP, "model.tp=2", "name=two"], "server": ["serve", "task.port=0"],
    "server of two ranks": ["serve", "task.port=0", "model.tp=2"], "check": ["task=check", "model.path=mini-llada"],
    "quantize": ["task=quantize", "model.path=mini-llada", "model.quantize=int4", "quantize.to=q"],
    "list": ["list"], "help": ["--help"],
}  # fmt: skip
SERVED = 12.0  # seconds after its address in which a server opens whatever else it does


def listening(process: psutil.Process) -> set[str]:
    """The addresses on which a process and those that it started listen."""
    found = set[str]()
    for one in [process, *process.children(recursive=True)]:
        try:
            sockets = one.net_connections("inet")
        except psutil.Error:  # it has just ended
            continue
        found |= {each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN}
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_listens_on_this_machine_alone(name: str, tmp_path: Path) -> None:
    place = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dllm", *COMMANDS[name]]
    with (tmp_path / "said").open("w") as said:
        process = psutil.Popen(command, cwd=tmp_path, env=place, stdout=said, stderr=subprocess.STDOUT)
    found, until = set[str](), time.monotonic() + 300
    try:
        while process.poll() is None and time.monotonic() < until:
            found |= listening(process)
            if "server" in name and "playground at" in (tmp_path / "said").read_text():
                until = min(until, time.monotonic() + SERVED)
            time.sleep(0.05)
    finally:
        if process.poll() is None:
            process.terminate()
        code = process.wait(30)
    assert code == 0, (tmp_path / "said").read_text()
    assert found == ({"127.0.0.1"} if "server" in name or "ranks" in name else set())
