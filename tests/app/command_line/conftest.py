"""``python run.py`` with the tiny model, in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dllm.app.command_line import main as cli
from dllm.models import bundle


@dataclass
class Outcome:
    code: int
    out: str
    err: str
    folder: Path  # where runs go

    @property
    def run(self) -> Path:
        (folder,) = [entry for entry in self.folder.iterdir() if entry.is_dir()]
        return folder

    def rows(self, name: str = "results.jsonl") -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run / name).read_text().splitlines()]


Run = Callable[..., Outcome]


@pytest.fixture
def run(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """``python run.py ARGUMENTS`` with the tiny model, in this process."""

    def call(*arguments: str, model: Path = tiny) -> Outcome:
        monkeypatch.chdir(tmp_path)
        given = [f"model.path={model}", "output=runs", "blocks.block_length=8", "gen_length=16", *arguments]
        plain = any(argument.startswith(("resume=", "again=", "task=", "-")) for argument in arguments)
        monkeypatch.setattr(sys, "argv", ["run.py", *(arguments if plain else given)])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err, tmp_path / "runs")

    return call


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading weights is an error."""

    def load(*arguments: Any, **options: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(bundle, "load", load)
