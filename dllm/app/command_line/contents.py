"""Settings of a constraint that name a file: its content takes the name's place, so that a run folder keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dllm.errors import UserError, first_line


def with_contents(constraint: Mapping[str, Any]) -> dict[str, Any]:
    """A constraint's configuration whose schema is JSON text, members in their order, and whose grammar is its rules.

    Raises UserError for a file that cannot be read, or that holds no JSON.
    """
    out = dict(constraint)
    schema, grammar = out.get("schema"), out.get("grammar")
    if schema is not None:
        out["schema"] = json.dumps(_loaded(schema) if isinstance(schema, str) else schema, ensure_ascii=False)
    if isinstance(grammar, str) and grammar.endswith(".lark") and "\n" not in grammar:
        out["grammar"] = _read("grammar", grammar, "give the rules themselves")
    return out


def _loaded(schema: str) -> Any:
    """The schema that a text is, or that a file of this name holds."""
    itself = schema.lstrip().startswith(("{", "[", '"')) or schema.strip() in ("true", "false")
    text = schema if itself else _read("schema", schema, "give the schema itself as JSON")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        shown = repr(schema if len(schema) <= 60 else schema[:60] + "...")
        raise UserError(f"constraint.schema={shown} is no JSON: {first_line(error)}. Mend it there.") from None


def _read(name: str, file: str, instead: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: it is no UTF-8, or a name that no file has
        why = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
        shown = repr(file if len(file) <= 60 else file[:60] + "...")
        raise UserError(f"constraint.{name}={shown} cannot be read ({why}). Name a file, or {instead}.") from None
