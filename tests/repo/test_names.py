"""Each public name means one thing in the whole package."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "dllm"
# One name for one role: programs, the commands that ``task=`` starts, what every kernel's file holds, and every file of
# tasks.
ROLES = {"main", "run", "reference", "BUILDS", "TASKS"}


def defined(tree: ast.Module) -> Iterator[str]:
    """Public names of classes, functions and constants at the top of a module."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        else:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [name.id for target in targets if target for name in ast.walk(target) if isinstance(name, ast.Name)]
        yield from (name for name in names if not name.startswith("_"))


def places() -> dict[str, set[str]]:
    """Name -> the modules that define it."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in sorted(PACKAGE.rglob("*.py")):
        for name in defined(ast.parse(file.read_text(encoding="utf-8"))):
            found[name].add(str(file.relative_to(PACKAGE)))
    return found


def test_a_public_name_is_defined_in_one_module() -> None:
    several = {name: modules for name, modules in places().items() if len(modules) > 1 and name not in ROLES}
    assert several == {}


# What modules of one name in several folders have in common: a folder's base class, a method's parts of each kind, the
# tasks of a suite, and what a decode and a decision give back.
SAME_THING = {
    "base",
    "none",
    "sliding",
    "credit",
    "flash_verify",
    "linear_spec",
    "suite",
    "puzzles",
    "results",
    "trees",
}


def test_a_module_name_means_one_thing() -> None:
    found = Counter(file.stem for file in PACKAGE.rglob("*.py") if not file.stem.startswith("__"))
    assert {name for name, count in found.items() if count > 1} == SAME_THING


def test_both_kinds_of_definition_are_found() -> None:
    tree = ast.parse("class A: ...\ndef b(): ...\nC = D = 1\nE: int = 2\n_f = 3\nimport g\n")
    assert set(defined(tree)) == {"A", "b", "C", "D", "E"}
