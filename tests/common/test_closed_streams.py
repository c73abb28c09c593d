"""A standard stream that is closed takes nothing, and nothing else gets its number."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import dllm.common.terminal as t, os, sys
t.say("a"); t.complain("b"); t.complain_folded("c"); t.VisibleLog()
assert os.open(os.devnull, os.O_RDONLY) > 2
sys.stdout.flush(); os._exit(7)
"""


@pytest.mark.parametrize("closed", ["", ">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_silent(closed: str) -> None:
    assert subprocess.run(["/bin/sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, PROGRAM]).returncode == 7
