"""Every field of a dataclass is explained where it stands: by a comment behind it, or on the line above."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "dllm"


def unexplained(file: Path) -> Iterator[str]:
    """``Class.field`` of every field without a comment."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    for kind in ast.walk(ast.parse(text)):
        if isinstance(kind, ast.ClassDef) and any("dataclass" in ast.unparse(made) for made in kind.decorator_list):
            for field in kind.body:
                if isinstance(field, ast.AnnAssign) and not ast.unparse(field.annotation).startswith("ClassVar"):
                    own = lines[field.lineno - 1 : field.end_lineno]
                    if "  # " not in "\n".join(own) and not lines[field.lineno - 2].lstrip().startswith("# "):
                        yield f"{kind.name}.{ast.unparse(field.target)}"


def test_fields_are_explained_at_the_field() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 200
    found = {str(file.relative_to(PACKAGE)): names for file in files if (names := list(unexplained(file)))}
    assert found == {}, "explain these fields at the field"
