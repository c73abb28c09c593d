"""Ranks as processes on gloo: each decodes what one process decodes, and all record in one order."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.rank_program import CASES

ROOT = Path(__file__).parents[2]
OF_SIZE = {2: CASES, 4: CASES[::3]}  # of four: each of the processes decodes every case
pytestmark = pytest.mark.program


@cache
def found(size: int) -> dict[str, list[dict[str, Any]]]:
    """What the processes of a group say of each case."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "laws")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.support.rank_program"]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(size), str(port), ",".join(OF_SIZE[size])],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    said = [one.communicate(timeout=1800) for one in running]
    assert all(one.returncode == 0 for one in running), said[0][1][-3000:]
    lines = [[json.loads(line) for line in out.splitlines() if line.startswith("{")] for out, _ in said]
    return {name: [one for rank in lines for one in rank if one["case"] == name] for name in OF_SIZE[size]}


@pytest.mark.parametrize(("size", "name"), [(size, name) for size, names in OF_SIZE.items() for name in names])
def test_processes_decode_what_one_decodes(size: int, name: str) -> None:
    told = found(size)[name]
    assert len(told) == size
    assert all(one["equal"] and one["agree"] for one in told)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("recorded")])
def test_recorded_turns_are_replayed(name: str) -> None:
    log = found(2)[name][0]["log"]
    assert log.count("record") and log.count("replay") > 4 * log.count("record") / 2


def test_a_forward_of_a_dense_model_takes_two_sums_a_layer_and_one_gather() -> None:
    """Four layers. A row of the head gives five numbers."""
    told = found(2)["bytes"][0]
    assert told["sums"] == 8 * told["forwards"] and told["gathers"] == told["forwards"]
    assert told["gathered"] % (5 * 8) == 0
