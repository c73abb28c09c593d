"""A hash of the chosen parts' code, which belongs to a run's identity: a part that was edited is another part."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

from dllm.common.digest import digest
from dllm.compose.importing import imported_class
from dllm.compose.trusted import named_targets

OURS = __name__.partition(".")[0]
PYTHON_FOLDERS = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def targets(config: Mapping[str, Any]) -> Iterator[str]:
    """The classes that a resolved configuration names, nested ones too."""
    return (str(target) for _, target in named_targets(config))


def code_hash(names: Iterable[str]) -> str:
    """A hash of the modules that define these classes and their bases. For classes that are not ours it includes the
    modules that these import from the folder of their package.

    The loop and the models are not part of it: with them each new version would decode every sweep again. Which version
    ran is in ``environment.json``.
    """
    modules: dict[str, ModuleType] = {}
    for name in names:
        for base in inspect.getmro(imported_class("_target_", name, object)):
            module = sys.modules.get(base.__module__)
            if module is not None and is_hashed(module):
                collect_modules(module, modules)
    return digest("".join(f"{name}\n{code_text(modules[name])}\n" for name in sorted(modules)).encode())


def collect_modules(module: ModuleType, modules: dict[str, ModuleType]) -> None:
    """Add a module to ``modules``. Unless it is ours, add what it imports from its package's folder too, and so on."""
    if module.__name__ in modules:
        return
    modules[module.__name__] = module
    if module.__name__.partition(".")[0] == OURS:
        return
    top = sys.modules.get(module.__name__.partition(".")[0])  # a namespace has no file
    folder = file_of(top if getattr(top, "__file__", None) else module).parent
    for name in imported_names(module):
        other = sys.modules.get(name)
        if other is not None and is_hashed(other) and file_of(other).is_relative_to(folder):
            collect_modules(other, modules)


@cache
def imported_names(module: ModuleType) -> tuple[str, ...]:
    """Names of what a module imports; each may be a module."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source_text(module))):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = resolve_name("." * node.level + (node.module or ""), module.__package__)
            names += (package, *(f"{package}.{alias.name}" for alias in node.names))
    return tuple(names)


def file_of(module: ModuleType | None) -> Path:
    return Path(str(module and module.__file__)).resolve()


def is_hashed(module: ModuleType) -> bool:
    """Whether a module is ours, or is outside Python and the installed packages, which change with their version."""
    if getattr(module, "__file__", None) is None:
        return False
    ours = module.__name__.partition(".")[0] == OURS
    return ours or not any(file_of(module).is_relative_to(folder.resolve()) for folder in PYTHON_FOLDERS)


def source_text(module: ModuleType) -> str:
    """A module's source; empty where only compiled code is there."""
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return ""


@cache  # what this process runs: a file that is edited meanwhile is for the next one
def code_text(module: ModuleType) -> str:
    """A module's code without comments, docstrings and layout, which change no sample; the hash of its file where there
    is not a source."""
    source = source_text(module)
    if not source:
        return hashlib.sha256(file_of(module).read_bytes()).hexdigest()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
