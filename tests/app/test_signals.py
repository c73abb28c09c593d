"""SIGTERM at any moment of a start is an end, and a second one ends at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from random import Random

import pytest

from dllm.common import signals
from dllm.parts import SIGNALLED, Terminated, UserError, obey_signals, raise_if_told, user_errors
from tests.app.conftest import ROOT


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in signals.ENDING}
    SIGNALLED.clear()
    obey_signals()
    yield
    SIGNALLED.clear()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("swallowed", [UserError("names no function"), ImportError("x"), AttributeError("x"), None])
def test_a_signal_that_became_another_error_is_an_end(swallowed: Exception | None, told: None) -> None:
    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except BaseException:  # as libraries have it
            if swallowed is not None:
                raise swallowed from None
        raise_if_told()

    with pytest.raises(SystemExit) as ended, user_errors([]):
        work()
    assert ended.value.code == 143


def test_a_second_signal_ends_at_once(told: None, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(signals.os, "_exit", codes.append)
    with pytest.raises(Terminated):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGHUP)  # a closed session sends both
    assert codes == []
    os.kill(os.getpid(), signal.SIGTERM)
    assert codes == [143]
    monkeypatch.setattr(signals, "TOGETHER", 0.0)
    os.kill(os.getpid(), signal.SIGHUP)
    assert codes == [143, 129]


def test_an_import_is_ended_first(told: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception among C++ that is being initialised ends the process by SIGABRT."""
    lines = ["import os, signal, time", "os.kill(os.getpid(), signal.SIGTERM)", "time.sleep(0.1)", "whole = True"]
    (tmp_path / "ends_in_the_middle.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    module = import_module("ends_in_the_middle")
    assert module.whole
    with pytest.raises(Terminated) as stop:
        time.sleep(1)
    assert stop.value.code == 143


def ended(folder: Path, after: float, number: int, *words: str) -> tuple[int, str]:
    place = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dllm", *words]
    process = subprocess.Popen(
        command, cwd=folder, env=place, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    time.sleep(after)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


@pytest.mark.program
def test_a_start_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """Before the handler is there, the system ends the process. A prompt of many turns cannot be done in time."""
    dice = Random(11)
    for _ in range(16):
        after = dice.uniform(0.1, 2.0)
        code, said = ended(tmp_path, after, signal.SIGTERM, "prompt=w1", "gen_length=512", "sampler=static", "eos=none")
        assert code in (143, -signal.SIGTERM), (after, code, said)
        assert "Traceback" not in said and "Error" not in said


@pytest.mark.program
def test_ctrl_c_at_the_end_of_a_conversion_is_no_crash(tmp_path: Path) -> None:
    words = ["task=quantize", "model.path=mini-llada", "model.quantize=int4"]
    place = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for number in range(4):
        command = [sys.executable, "-m", "dllm", *words, f"quantize.to=q{number}"]
        process = subprocess.Popen(command, cwd=tmp_path, env=place, text=True, stdout=subprocess.PIPE)
        assert process.stdout is not None and "Load it by" in process.stdout.readline()
        time.sleep(0.005 * number)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode in (0, 130)
