"""What the chosen parts do, as a hash of their code: a part that was edited is another part."""

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

OURS = __name__.partition(".")[0]
INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def targets(config: Mapping[str, Any]) -> Iterator[str]:
    """The classes that a resolved configuration names, also inside each other."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from targets(value)
        elif key == "_target_":
            yield str(value)


def code_of(names: Iterable[str]) -> str:
    """A hash of the modules that define these classes and their bases; of others' classes also of the modules that
    these import from the folder that holds their package.

    The loop and the models are no part of it: with them every new version would decode every sweep again. Which version
    ran is in ``environment.json``.
    """
    from hydra.utils import get_class

    found: dict[str, ModuleType] = {}
    for name in names:
        for base in inspect.getmro(get_class(name)):
            module = sys.modules.get(base.__module__)
            if module is not None and written_here(module):
                gather(module, found)
    parts = "".join(f"{name}\n{text_of(found[name])}\n" for name in sorted(found))
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def gather(module: ModuleType, found: dict[str, ModuleType]) -> None:
    """Add a module to ``found``, and unless it is ours those around it that it imports, and so on."""
    if module.__name__ in found:
        return
    found[module.__name__] = module
    if module.__name__.partition(".")[0] == OURS:
        return
    top = sys.modules.get(module.__name__.partition(".")[0])  # a namespace has no file
    folder = file_of(top if getattr(top, "__file__", None) else module).parent
    for name in imports(module):
        other = sys.modules.get(name)
        if other is not None and written_here(other) and file_of(other).is_relative_to(folder):
            gather(other, found)


@cache
def imports(module: ModuleType) -> tuple[str, ...]:
    """Every name that may be a module which this one imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source_of(module))):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = resolve_name("." * node.level + (node.module or ""), module.__package__)
            names += (package, *(f"{package}.{alias.name}" for alias in node.names))
    return tuple(names)


def file_of(module: ModuleType | None) -> Path:
    return Path(str(module and module.__file__)).resolve()


def written_here(module: ModuleType) -> bool:
    """Ours, or neither Python's nor an installed package's: those change with their version."""
    if getattr(module, "__file__", None) is None:
        return False
    ours = module.__name__.partition(".")[0] == OURS
    return ours or not any(file_of(module).is_relative_to(folder.resolve()) for folder in INSTALLED)


def source_of(module: ModuleType) -> str:
    """Empty where there is only what was compiled."""
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return ""


@cache  # what this process runs: a file that is edited meanwhile is for the next one
def text_of(module: ModuleType) -> str:
    """A module's code without comments, docstrings and layout, which change no sample; the hash of its file where there
    is no source."""
    source = source_of(module)
    if not source:
        return hashlib.sha256(file_of(module).read_bytes()).hexdigest()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
