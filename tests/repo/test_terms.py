"""The glossary names what the contract holds, all of it and nothing else."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dllm.cache import passes
from dllm.common import rowwise
from dllm.contract import attention as attending
from dllm.contract import beside, canvas, logits, setting, shapes
from dllm.contract import types as contract
from dllm.loop import rows
from dllm.models import memory

TEXT = (Path(__file__).parents[2] / "docs" / "terms.md").read_text(encoding="utf-8")
CONTRACT = TEXT.split("## The contract")[1].split("\n## ")[0]
MODULES = (attending, beside, canvas, contract, logits, rows, shapes, passes, rowwise, memory, setting)


def classes(module: ModuleType) -> dict[str, Any]:
    return {
        name: kind for name, kind in vars(module).items()
        if isinstance(kind, type) and kind.__module__ == module.__name__
    }  # fmt: skip


KNOWN = {name: kind for module in MODULES for name, kind in classes(module).items()}
CELLS = re.findall(r"^\| (`[^|]*`) \|", CONTRACT, re.MULTILINE)  # the first column
LISTED = [name for cell in CELLS for name in re.findall("`([^`]+)`", cell)]


def wanted() -> list[str]:
    """Every dataclass that parts exchange, and its fields."""
    found = []
    for module in (attending, beside, contract, logits, rows, passes):
        for name, kind in classes(module).items():
            found += [name, *(f"{name}.{field.name}" for field in fields(kind))] if is_dataclass(kind) else []
    return [*found, *(f"Canvas.{field.name}" for field in fields(canvas.Canvas))]


@pytest.mark.parametrize("name", wanted())
def test_the_glossary_has_it(name: str) -> None:
    assert LISTED.count(name) == 1, f"docs/terms.md needs one row that begins with | `{name}` |"


@pytest.mark.parametrize("name", [name for name in LISTED if name.split(".")[0] in KNOWN])
def test_what_the_glossary_lists_exists(name: str) -> None:
    kind, _, attribute = name.partition(".")
    if attribute:
        fields_of = {field.name for field in fields(KNOWN[kind])} if is_dataclass(KNOWN[kind]) else set()
        assert attribute in fields_of or hasattr(KNOWN[kind], attribute)


def test_no_row_names_what_is_not_there() -> None:
    """A plain identifier of the tables is a class, a function or an option that the package has."""
    package = "\n".join(file.read_text() for file in (Path(__file__).parents[2] / "dllm").rglob("*.py"))
    assert [name for name in LISTED if not re.search(rf"\b{re.escape(name.split('.')[-1])}\b", package)] == []
