"""``python run.py`` with the tiny model and a task of a few questions."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dllm.app.command_line import main as cli

ROOT = Path(__file__).parents[2]
QUESTIONS = [
    "task.run=dllm.app.commands.evaluate.run",
    "+task._target_=tests.app.questions.Questions",
    "blocks.block_length=8",
]


@dataclass
class Outcome:
    code: int
    out: str
    err: str


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def cells_of(sweep: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of every cell, by the cell's identity, without what differs from run to run."""
    return {
        cell.parent.name: sorted(map(timeless, rows_of(cell.parent)), key=lambda row: row["id"])
        for cell in sweep.glob("*/results.jsonl")
    }


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("seconds", "began", "cpu_seconds", "load")}


def command(tiny: Path, *arguments: str) -> list[str]:
    return [f"model.path={tiny}", *QUESTIONS, *arguments]


Run = Callable[..., Outcome]


@pytest.fixture
def run(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """In this process; runs go to ``runs`` in a temporary folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, bare: bool = False) -> Outcome:
        given = list(arguments) if bare else command(tiny, *arguments)
        monkeypatch.setattr(sys, "argv", ["run.py", *given])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Outcome(code, *capfd.readouterr())

    return call
