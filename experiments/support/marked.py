"""Sections of documents that a command writes, between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``."""

from __future__ import annotations

from pathlib import Path

from dllm.common.errors import UserError


def marks(name: str) -> tuple[str, str]:
    """The lines before and after a section."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def write_marked(page: Path, name: str, text: str) -> None:
    """Put ``text`` between the markers ``name`` of a page. Raises UserError where the page has none."""
    start, stop = marks(name)
    before, begin, rest = page.read_text().partition(start)
    _, end, after = rest.partition(stop)
    if not (begin and end):
        raise UserError(f"{page} has no lines {start} and {stop}. Put them back where the results shall be.")
    page.write_text(f"{before}{start}\n\n{text}\n{stop}{after}")
