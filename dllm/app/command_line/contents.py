"""Settings of a constraint that name a file: its content takes the name's place, so that a run folder keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dllm.common.errors import UserError, first_line


def with_contents(constraint: Mapping[str, Any]) -> dict[str, Any]:
    """A constraint's configuration whose schema and functions are JSON text, members in their order, and whose grammar
    is its rules.

    Raises UserError for a file that cannot be read, or that holds no JSON.
    """
    out = dict(constraint)
    grammar = out.get("grammar")
    for name in ("schema", "functions"):
        if (value := out.get(name)) is not None:
            out[name] = json.dumps(_loaded(name, value) if isinstance(value, str) else value, ensure_ascii=False)
    if isinstance(grammar, str) and grammar.endswith(".lark") and "\n" not in grammar:
        out["grammar"] = _file_text("grammar", grammar, "give the rules themselves")
    return out


def _loaded(name: str, value: str) -> Any:
    """What a setting's text is, or what a file of this name holds."""
    itself = value.lstrip().startswith(("{", "[", '"')) or value.strip() in ("true", "false")
    text = value if itself else _file_text(name, value, f"give the {name} as JSON")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        excerpt = repr(value if len(value) <= 60 else value[:60] + "...")
        raise UserError(f"constraint.{name}={excerpt} is not JSON: {first_line(error)}. Mend it there.") from None


def _file_text(name: str, file: str, instead: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: it is not UTF-8, or a name that no file has
        why = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
        excerpt = repr(file if len(file) <= 60 else file[:60] + "...")
        raise UserError(f"constraint.{name}={excerpt} cannot be read ({why}). Name a file, or {instead}.") from None
