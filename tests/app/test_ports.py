"""Every socket on which a command listens is on 127.0.0.1, unless it was told otherwise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.app.conftest import QUESTIONS, ROOT

pytestmark = pytest.mark.program
SWEEP = ["-m", *QUESTIONS, "+task.count=3", "sampler=static,eb"]
# what one process does; and what ranks do, whose sockets stay as long as they do
ALONE = [
    ["prompt=Latin square: A,B,C,D"],
    SWEEP,
    ["task=check", "model.path=mini-llada"],
    ["list"],
    ["--help"],
    ["task=quantize", "model.path=mini-llada", "model.quantize=int4", "quantize.to=q"],
]
ONE_BY_ONE = """
import sys
from dllm.app.command_line.main import main
for arguments in {}:
    sys.argv = ["dllm", *arguments]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, arguments
"""
COMMANDS = {
    "alone": ["-c", ONE_BY_ONE.format(ALONE)],
    "sweep of two ranks": ["-m", "dllm", *SWEEP, "model.tp=2", "name=two"],
    "server of two ranks": ["-m", "dllm", "serve", "task.port=0", "model.tp=2"],
    "server": ["-m", "dllm", "serve", "task.port=0"],
}


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


def is_ready(said: str) -> bool:
    """Whether the server that said this has its model, and so every socket that it opens."""
    address = re.search(r"playground at (\S+),", said)
    return address is not None and httpx.get(f"{address[1]}/health", timeout=60).status_code == 200


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_listens_on_this_machine_alone(name: str, tmp_path: Path) -> None:
    place = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (tmp_path / "said").open("w") as said:
        process = psutil.Popen(
            [sys.executable, *COMMANDS[name]], cwd=tmp_path, env=place, stdout=said, stderr=subprocess.STDOUT
        )
    found, until = set[str](), time.monotonic() + 280
    try:
        ready = False
        while not ready and process.poll() is None and time.monotonic() < until:
            ready = "server" in name and is_ready((tmp_path / "said").read_text())
            found |= listening(process)
            time.sleep(0.1)
    finally:
        if process.poll() is None:
            process.terminate()
        code = process.wait(60)
    assert code == 0 and ready == ("server" in name), (tmp_path / "said").read_text()
    assert found == (set() if name == "alone" else {"127.0.0.1"})
