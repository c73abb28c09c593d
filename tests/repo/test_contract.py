"""Who asks how shapes are known, and whether bases stay apart."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "dllm"
FOLDERS = ("contract", "loop", "samplers", "blocks", "cache", "eos", "runtime")


def core() -> list[Path]:
    return [file for name in FOLDERS for file in sorted((PACKAGE / name).glob("*.py")) if file.name != "shapes.py"]


def test_nobody_but_the_loop_asks_which_shapes_there_are() -> None:
    """Parts ask the shapes; that they are exact or bounded is decided once (21 conditions before the redesign)."""
    asks = re.compile(r"isinstance\([^)]*\b(Exact|Bounded)|\bif bounded\b|(lag|shapes) is (not )?None")
    lines = [(file.name, line.strip()) for file in core() for line in file.read_text().splitlines()]
    assert [name for name, line in lines if asks.search(line)] == ["runtime.py"]


def test_no_base_imports_another() -> None:
    for base in ("samplers", "blocks", "cache", "eos"):
        text = (PACKAGE / base / "base.py").read_text()
        assert not re.search(rf"from dllm\.(?!{base})(samplers|blocks|cache|eos)\b", text)
        assert "TYPE_CHECKING" not in text
