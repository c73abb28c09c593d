"""What the package offers at its top explains itself: arguments, returns, errors, and an example that runs."""

from __future__ import annotations

import doctest
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dllm
from dllm import Decoder, Trace, load, part, results_frame
from dllm.app.command_line import main as cli

PUBLIC: dict[str, Callable[..., Any]] = {
    "load": load, "part": part, "results_frame": results_frame, "Decoder": Decoder, "Decoder()": Decoder.__call__,
    "Decoder.stream": Decoder.stream, "Decoder.infill": Decoder.infill, "Decoder.decide": Decoder.decide,
    "Decoder.rescored": Decoder.rescored, "Trace.load": Trace.load,
}  # fmt: skip


def listed(text: str) -> set[str]:
    """The names of an ``Args:`` list."""
    lines = re.search(r"^Args:\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE)
    assert lines is not None, "no list of arguments"
    return {
        name for names in re.findall(r"^    (\w+(?:, \w+)*): \S", lines[1], re.MULTILINE) for name in names.split(", ")
    }


@pytest.mark.parametrize("name", PUBLIC)
def test_every_argument_is_explained(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    parameters = inspect.signature(PUBLIC[name]).parameters
    assert listed(text) == set(parameters) - {"self", "unknown"} - ({"options"} if name == "Decoder" else set())
    assert "\nRaises:\n    UserError: " in text and ("\nReturns:\n" in text or name == "Decoder")


def example(name: str, text: str) -> doctest.DocTest:
    found = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert found.examples and "+SKIP" not in text
    return found


@pytest.mark.parametrize("name", ["dllm", *sorted(PUBLIC.keys() - {"results_frame"})])
def test_its_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    text = inspect.getdoc(PUBLIC.get(name, dllm)) or ""
    doctest.DocTestRunner().run(example(name, text), out=said.append)
    assert said == []


@pytest.mark.program  # a sweep
def test_the_example_of_a_table_of_results_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed: pip install 'dllm[frame]'")
    monkeypatch.chdir(tmp_path)
    settings = ["sampler=confidence", "cache=none,dual", "task=parallelbench", "task.tasks=[copy]", "task.count=1"]
    monkeypatch.setattr(sys, "argv", ["run.py", "-m", *settings, "name=grid"])
    cli.main()
    capsys.readouterr()
    text = inspect.getdoc(results_frame) or ""
    said: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example("results_frame", text), out=said.append)
    assert said == []
