"""Sections of documents that a command writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dllm import UserError
from experiments.support.marked import marks, write_marked


def test_what_stood_between_the_lines_goes(tmp_path: Path) -> None:
    begin, end = marks("it")
    page = tmp_path / "page.md"
    page.write_text(f"words\n{begin}\n\nold\n\n{end}\nmore\n")
    write_marked(page, "it", "new\n")
    assert page.read_text() == f"words\n{begin}\n\nnew\n\n{end}\nmore\n"


def test_a_page_without_the_lines_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# A\n")
    with pytest.raises(UserError, match="has no lines <!-- it: begin --> and"):
        write_marked(tmp_path / "page.md", "it", "text")
    assert (tmp_path / "page.md").read_text() == "# A\n"
