"""The glossary says what the fields say, and names nothing that is not there."""

from __future__ import annotations

import re

import pytest

from dllm.errors import UserError
from experiments.pages.glossary import MARK, PACKAGE, PAGE, explained, section
from experiments.support.marked import marks

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_is_what_the_command_writes() -> None:
    assert section() in TEXT, "run python -m experiments.pages.glossary"


def test_a_field_is_explained_behind_it_or_above_it() -> None:
    source = (
        'class Two:\n    """Both ways. In papers: a pair."""\n\n'
        "    # [B] above,\n    # on two lines; papers: `x`\n    a: int\n"
        "    b: int = 1  # behind ``it``\n"
    )
    assert list(explained(source, "Two")) == [
        ("Two", "Both ways", "a pair"),
        ("Two.a", "[B] above, on two lines", "`x`"),
        ("Two.b", "behind `it`", "-"),
    ]
    with pytest.raises(UserError, match="Two.c has no comment"):
        list(explained(source + "    c: int\n", "Two"))


def test_the_page_names_what_there_is() -> None:
    """A plain identifier of the other tables is a class, a function or an option that the package has."""
    cells = re.findall(r"^\| (`[^|]*`) \|", TEXT.split(marks(MARK)[1])[1].split("\n## ")[0], re.MULTILINE)
    package = "\n".join(file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py"))
    names = [name.split(".")[-1] for cell in cells for name in re.findall("`([^`]+)`", cell)]
    assert [name for name in names if not re.search(rf"\b{re.escape(name)}\b", package)] == []
