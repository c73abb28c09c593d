"""Who may import whom: the table of CONTRIBUTING.md holds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dllm"
CORE = {file.stem for file in PACKAGE.glob("*.py")}
FILES = sorted(file for file in PACKAGE.rglob("*.py") if "conf" not in file.parts)


def allowed() -> dict[str, set[str]]:
    """Folder -> modules and folders that it may import, from the table."""
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    return {folder: set(re.findall(r"`([\w.]+)`", cell)) for folder, cell in rows}


def imports(file: Path) -> Iterator[str]:
    """Every module that a file imports, also inside functions and for types alone."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            yield node.module or ""


def folder_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "core"


def names_of(module: str) -> set[str]:
    """What a rule may call a module: its dotted name below dllm, every folder above it, and ``core``."""
    parts = module.split(".")[1:]
    return {".".join(parts[:length]) for length in range(1, len(parts) + 1)} | ({"core"} if core(parts) else set())


def core(parts: list[str]) -> bool:
    return not parts or parts[0] in CORE


def refused(folder: str, modules: Iterable[str]) -> list[str]:
    """Those of ``modules`` that files of ``folder`` may not import."""
    rules = allowed()[folder] | {folder}
    return [name for name in modules if name.partition(".")[0] == "dllm" and not names_of(name) & rules]


def test_the_table_names_every_folder() -> None:
    folders = {file.parent.name for file in PACKAGE.glob("*/__init__.py")} - {"conf"}
    assert set(allowed()) == folders | {"core"}


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(PACKAGE)) for file in FILES])
def test_a_file_imports_what_its_folder_may(file: Path) -> None:
    assert refused(folder_of(file), imports(file)) == []


@pytest.mark.parametrize(
    ("module", "bad"),
    [
        ("dllm.models.transformer", True), ("dllm.tasks.base", True), ("dllm.blocks.fixed", True),
        ("dllm.cache.base", True), ("dllm", True), ("dllm.blocks.base", False), ("dllm.samplers.static", False),
        ("torch", False),
    ],
)  # fmt: skip
def test_the_check_finds_what_a_sampler_may_not(module: str, bad: bool) -> None:
    assert bool(refused("samplers", [module])) == bad


def test_imports_inside_functions_count(tmp_path: Path) -> None:
    file = tmp_path / "new.py"
    file.write_text("def use():\n    import dllm.tasks.base\n    from dllm.models import bundle\n")
    assert list(imports(file)) == ["dllm.tasks.base", "dllm.models"]


PLACES = {
    "triton": {"kernels"},
    "pandas": {"record", "app", "view"},
    "hydra": {"compose", "app", "tasks"},
}


@pytest.mark.parametrize("library", PLACES)
def test_a_library_stays_where_it_belongs(library: str) -> None:
    users = [file for file in FILES if any(name.partition(".")[0] == library for name in imports(file))]
    places = {file.relative_to(PACKAGE).parts[0] for file in users}
    assert places and places <= PLACES[library]


def test_types_ship_with_the_package() -> None:
    assert (PACKAGE / "py.typed").is_file()
    assert '"py.typed"' in (ROOT / "pyproject.toml").read_text()
