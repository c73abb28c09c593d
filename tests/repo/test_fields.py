"""Every field of a dataclass is explained where it stands, by a comment of its own: behind it, or on the line above."""

from __future__ import annotations

import ast
import itertools
import re
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


def comments_of(text: str, field: ast.stmt) -> str:
    """The comments of a field: in the lines above it that hold nothing else, and behind it."""
    lines = text.splitlines()
    above = reversed(
        list(itertools.takewhile(lambda line: line.lstrip().startswith("#"), lines[field.lineno - 2 :: -1]))
    )
    own = [line.partition("  # ")[2] for line in lines[field.lineno - 1 : field.end_lineno]]
    return " ".join(one.strip(" #") for one in (*above, *own) if one.strip())


def told_twice(text: str) -> Iterator[str]:
    """``Class.field`` of every field whose comment is that of the field before it. A shape may be shared."""
    for kind in ast.walk(ast.parse(text)):
        if isinstance(kind, ast.ClassDef):
            for before, field in itertools.pairwise(kind.body):
                if isinstance(before, ast.AnnAssign) and isinstance(field, ast.AnnAssign):
                    comment = comments_of(text, field)
                    is_shape = re.fullmatch(r"\[[^\]]*\]|type: ignore.*|", comment)
                    if not is_shape and comment == comments_of(text, before):
                        yield f"{kind.name}.{ast.unparse(field.target)}"


def test_no_comment_is_copied_onto_the_next_field() -> None:
    copied = "class A:\n    low: int  # bounds\n    # bounds\n    high: int\n    x: int  # [B]\n    y: int  # [B]\n"
    assert list(told_twice(copied)) == ["A.high"]
    found = {
        str(file.relative_to(PACKAGE)): names
        for file in sorted(PACKAGE.rglob("*.py"))
        if (names := list(told_twice(file.read_text(encoding="utf-8"))))
    }
    assert found == {}, "say of each field what is true of it alone"
