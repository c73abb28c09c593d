"""What ``MODULE.CLASS`` and ``MODULE.FAMILY`` name, and in one sentence why it cannot be had: files hold anything."""

from __future__ import annotations

import inspect
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from dllm.common.errors import Refusal, first_line, nearest

if TYPE_CHECKING:
    from dllm.models.families import Family


def imported_class(name: str, target: str, base: type) -> type:
    """The class of a setting ``name``. Raises UserError, which names the file and the line to be mended, or the classes
    derived from ``base`` that the module has."""
    module, last = _imported_module(name, target)
    kind = getattr(module, last, None)
    if not isinstance(kind, type):
        classes = [
            key
            for key, value in vars(module).items()
            if inspect.isclass(value) and issubclass(value, base) and value.__module__ == module.__name__
        ]
        there = f": {module.__name__} has {', '.join(classes)}" if classes else ""
        what = "is not a class" if hasattr(module, last) else "names no class"
        raise Refusal(f"{{{name}:quoted}} {what}{there}.{nearest(last, classes)} Write MODULE.CLASS.", [target])
    return kind


def imported_family(target: str) -> Family:
    """The family of the setting ``model.family``. Raises UserError as ``imported_class``."""
    from dllm.models.families import Family  # brings torch, which most commands load later

    module, last = _imported_module("model.family", target)
    family = getattr(module, last, None)
    if not isinstance(family, Family):
        families = [key for key, value in vars(module).items() if isinstance(value, Family)]
        there = f": {module.__name__} has {', '.join(families)}" if families else ""
        raise Refusal(
            f"{{model.family:quoted}} names no dllm.models.families.Family{there}.{nearest(last, families)} Write "
            "MODULE.FAMILY.",
            [target],
        )
    return family


def _imported_module(name: str, target: str) -> tuple[ModuleType, str]:
    """The module of ``MODULE.NAME``, and the name in it."""
    module, _, last = target.rpartition(".")
    try:
        return import_module(module), last
    except Exception as error:  # whatever importing somebody's module raises
        raise Refusal(f"{{{name}:quoted}} {_unimported(module, error)}", [target]) from error


def place_of_error(error: BaseException) -> str:
    """The file and line of somebody's code that an error comes from, or nothing where it is Python's own."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.parent.name != "importlib" and not frame.filename.startswith("<"):
            return "" if file.parent == Path(__file__).parent else f"{file}, line {frame.lineno}"
    return ""


def _unimported(module: str, error: Exception) -> str:
    """Why a module cannot be imported, and what to do."""
    if isinstance(error, SyntaxError):
        text = f" in {error.text.strip()!r}" if error.text else ""
        return f"cannot be imported: {error.filename}, line {error.lineno}: {error.msg}{text}. Mend that line."
    missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and (module == missing or module.startswith(f"{missing}.")):
        rule = "Write MODULE.CLASS, with the module's folder in PYTHONPATH"
        return f"names no class: there is no module {missing}. {rule}."
    if not module or isinstance(error, ValueError | TypeError) and not place_of_error(error):
        return "must be MODULE.CLASS."
    where = place_of_error(error) or module
    return f"cannot be imported: {where}: {type(error).__name__}: {first_line(error)}. Mend that line."
