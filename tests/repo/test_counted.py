"""``make count``: the tests of each target as the Makefile's commands collect them, and reasons of skips from a log."""

from __future__ import annotations

import pytest

from tests import counted

MAKEFILE = """
FEW := tests/a.py \\
  tests/b.py
test: lint  ## Some.
\tOMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --part sample -m "not program"
test-rest:  ## Others.
\tDLLM_DEVICE=cpu OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(FEW)
\t$(BIN)/python -m pytest -n 2 --dist worksteal tests/gpu
"""


def test_commands_are_read_with_their_variables() -> None:
    one = {"OMP_NUM_THREADS": "1"}
    assert counted.commands(MAKEFILE) == {
        "test": [(one, ["--part", "sample", "-m", "not program"])],
        "test-rest": [({"DLLM_DEVICE": "cpu"} | one, ["tests/a.py", "tests/b.py"]), ({}, ["tests/gpu"])],
    }


def test_every_target_of_ours_runs_tests() -> None:
    found = counted.commands((counted.ROOT / "Makefile").read_text())
    assert {"test", "test-rest", "test-programs", "test-experiments", "test-extras"} == found.keys()
    assert all(found.values())


@pytest.mark.parametrize(
    ("targets", "whole", "code", "words"),
    [
        ({"test": {"a", "b"}, "rest": {"c"}}, {"a", "b", "c"}, 0, "3  sum"),
        ({"test": {"a", "b"}, "rest": {"b"}}, {"a", "b"}, 0, "1  of them a second time"),
        ({"test": {"a"}}, {"a", "lost"}, 1, "lost"),
        ({"test": {"a", "more"}}, {"a"}, 1, "0  in no target"),
    ],
)
def test_a_test_of_no_target_is_named(
    targets: dict[str, set[str]], whole: set[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert counted.report(targets, whole) == code
    assert words in capsys.readouterr().out


def test_reasons_of_skips_are_summed() -> None:
    log = "SKIPPED [2] tests/a.py:3: no Chromium\nx\nSKIPPED [1] tests/b.py: no Chromium\nSKIPPED [4] ../c.py:1: Ray\n"
    assert counted.skips(log) == {"no Chromium": 3, "Ray": 4}
