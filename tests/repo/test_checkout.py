"""What is tracked can be carried: tools that take a working tree along have limits of some 60 MiB."""

from __future__ import annotations

import subprocess

import pytest
from harness import DATA

ROOT = DATA.parents[1]


def test_a_checkout_takes_less_than_57_mib() -> None:
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git repository")
    files = [ROOT / name.decode() for name in listed.split(b"\0") if name]
    assert sum(file.stat().st_size for file in files if file.is_file()) < 57 << 20
