"""The class that ``MODULE.CLASS`` names, and in one sentence why it cannot be had: a user's file may hold anything."""

from __future__ import annotations

import inspect
import traceback
from importlib import import_module
from pathlib import Path

from dllm.errors import UserError, first_line, nearest


def imported_class(name: str, target: str, base: type) -> type:
    """The class of a setting ``name``. Raises UserError, which names the file and the line to be mended, or the classes
    derived from ``base`` that the module has."""
    module_name, _, last = target.rpartition(".")
    try:
        module = import_module(module_name)
    except Exception as error:  # whatever importing somebody's module raises
        raise UserError(f"{name}={target!r} {_unimported(module_name, error)}") from error
    kind = getattr(module, last, None)
    if not isinstance(kind, type):
        own = [key for key, value in vars(module).items() if inspect.isclass(value) and issubclass(value, base)
               and value.__module__ == module.__name__]  # fmt: skip
        there = f": {module_name} has {', '.join(own)}" if own else ""
        what = "is not a class" if hasattr(module, last) else "names no class"
        raise UserError(f"{name}={target!r} {what}{there}.{nearest(last, own)} Write MODULE.CLASS.")
    return kind


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
