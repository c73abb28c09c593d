"""Who asks how shapes are known."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "dllm"
FOLDERS = ("contract", "loop", "parts/samplers", "parts/blocks", "parts/cache", "parts/eos", "loop/runtime")


def core() -> list[Path]:
    return [file for name in FOLDERS for file in sorted((PACKAGE / name).glob("*.py")) if file.name != "shapes.py"]


def test_nobody_but_the_loop_asks_which_shapes_there_are() -> None:
    """Parts ask the shapes; that they are exact or bounded is decided once (21 conditions before the redesign)."""
    asks = re.compile(r"isinstance\([^)]*\b(Exact|Bounded)|\bif bounded\b|(lag|shapes) is (not )?None")
    lines = [(file.name, line.strip()) for file in core() for line in file.read_text().splitlines()]
    assert [name for name, line in lines if asks.search(line)] == ["runtime.py"]
