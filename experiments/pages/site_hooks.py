"""What mkdocs calls while it builds the site (``hooks`` of mkdocs.yml): pages that are made, not kept."""

from __future__ import annotations

from typing import Any

from dllm.laws.compatibility import compatibility_page

MARK = "<!-- compatibility -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page with the tables of what goes with what in the place of their mark."""
    return markdown.replace(MARK, compatibility_page()) if MARK in markdown else markdown
