"""What mkdocs calls while it builds the site (``hooks`` of mkdocs.yml): what is made, not kept in the pages.

``<!-- made: WORDS -->`` becomes what the parts say of themselves. A line that is a link to a CSV file becomes its
table, with the link below: a reader of the plain page follows it, a reader of the site sees the rows.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

from experiments.pages.parts import DOCS, made
from experiments.support.markdown import table

MADE = re.compile(r"<!-- made: ([\w ]+) -->")
ROWS = re.compile(r"^\[[^\]]*\]\(([\w/.-]+\.csv)\)$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page with what its marks and its links to CSV files stand for. ``page.file.src_uri``: its path in docs."""
    return completed(markdown, DOCS / page.file.src_uri)


def completed(markdown: str, place: Path) -> str:
    """The text of the page at ``place`` as the site shows it."""
    shown = ROWS.sub(lambda link: f"{csv_table(place.parent / link[1])}\n\n{link[0]}", markdown)
    return MADE.sub(lambda mark: made(mark[1]), shown)


def csv_table(file: Path) -> str:
    """The rows of a CSV file as a Markdown table; a column of words is set to the left."""
    head, *rows = csv.reader(file.read_text("utf-8").splitlines())
    words = next((at for at in range(len(head)) if all(re.match(r"[-~+]?\d|$", row[at]) for row in rows)), len(head))
    return table(head, rows, max(words, 1))
