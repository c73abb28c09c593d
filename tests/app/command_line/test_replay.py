"""``task=replay`` of a trace that a stranger wrote: nothing that it names is imported or run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.app.command_line.conftest import Run

PACKAGE = """
from pathlib import Path
from dllm.parts.samplers.static import Static
Path({mark!r}).write_text("imported")


class Mine(Static):
    pass
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that appears as soon as somebody imports ``strange_package``."""
    mark = tmp_path / "mark"
    (tmp_path / "strange_package.py").write_text(PACKAGE.format(mark=str(mark)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "strange_package", raising=False)
    return mark


def traced(run: Run, *arguments: str) -> dict[str, Any]:
    outcome = run("prompt=w1 w2", "trace=true", "sampler=static", *arguments)
    (file,) = (outcome.run / "traces").glob("*.json")
    return dict(json.loads(file.read_text()))


def test_a_trace_imports_no_package_that_the_user_does_not_name(run: Run, tmp_path: Path, package: Path) -> None:
    data = traced(run)
    file = tmp_path / "strange.json"
    inner = {"_target_": "dllm.parts.samplers.credit.Credit", "inner": {"_target_": "strange_package.Mine"}}
    for group, part in (
        ("sampler", {**data["config"]["sampler"], "_target_": "strange_package.Mine"}),
        ("sampler", inner),
        ("blocks", {"_target_": "strange_package.Mine"}),
        ("cache", {"_target_": "os.mkdir", "path": "made"}),
        ("eos", {"_target_": "dllm.parts.samplers.static.Static"}),
    ):
        file.write_text(json.dumps({**data, "config": {**data["config"], group: part}}))
        found = run("task=replay", f"trace={file}")
        assert found.code == 2 and f"the trace names {group}._target_=" in found.err and found.err.count("\n") == 1
        assert not package.exists() and not (tmp_path / "made").exists()


def test_a_package_that_the_user_names_is_trusted(run: Run, tmp_path: Path, package: Path) -> None:
    data = traced(run, "sampler._target_=strange_package.Mine")
    file = tmp_path / "own.json"
    file.write_text(json.dumps(data))
    refused = run("task=replay", f"trace={file}")
    assert refused.code == 2 and "task.packages=[strange_package]" in refused.err
    assert "turns equal" in run("task=replay", "task.packages=[strange_package]", f"trace={file}").out


ODD: list[Any] = [
    {}, [], 5, {"sampler": 5}, {"model": 5}, {"sampling": {"nonsense": 1}}, {"sampling": 5}, {"gen_length": "x"},
    {"stop": 5}, {"gen_length": -1}, {"cache": {"_target_": ["x"]}}, {"model": {"path": "../none"}}, {"lag": [1]},
    {"sampler": {"_target_": "dllm.parts.samplers.static.Static", "steps": {"_target_": "os.mkdir"}}},
]  # fmt: skip


def test_settings_that_are_none_are_a_sentence(run: Run, tmp_path: Path) -> None:
    data, file = traced(run), tmp_path / "odd.json"
    for config in ODD:
        whole = {**data["config"], **config} if config and isinstance(config, dict) else config
        file.write_text(json.dumps({**data, "config": whole}))
        found = run("task=replay", f"trace={file}")
        assert found.code == 2 and found.err.startswith("Error: ") and found.err.count("\n") == 1, (config, found)
