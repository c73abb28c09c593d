"""Every public class, function and constant of the package by its name alone, wherever its file is.

>>> from dllm.parts import Confidence, fit_temperature

Tests and packages of one's own import from here, so that a file of dllm can move. A name that two modules define
(``main``, ``run``, ``reference``) has to be imported from its module.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

# What defines names at the top of a module: a class, a function, constants (several at once, too).
DEFINITION = re.compile(
    r"^(?:(?:async )?def |class )([A-Za-z]\w*)|^([A-Za-z]\w*(?:, [A-Za-z]\w*)*)(?: = |: [A-Z\w])", re.MULTILINE
)


@lru_cache(1)
def _places() -> dict[str, str | None]:
    """Public name -> the module that defines it, None where several do. Read from the sources: nothing is imported."""
    package, found = Path(__file__).parents[1], dict[str, str | None]()
    for file in sorted(package.rglob("*.py")):
        module = ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        for one, several in set(DEFINITION.findall(file.read_text(encoding="utf-8"))):
            for name in [one] if one else several.split(", "):
                found[name] = module if found.get(name, module) == module else None
    return found


def __getattr__(name: str) -> Any:
    module = _places().get(name)
    if module is None:
        several = "in several modules; import it from one" if name in _places() else "nowhere in dllm"
        raise AttributeError(f"module 'dllm.parts' has no attribute {name!r}: it is defined {several}.")
    return getattr(import_module(module), name)
