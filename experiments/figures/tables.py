"""Tables of Markdown, as numbers and words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
Table = dict[tuple[str, str], list[str]]  # (heading, first cell) -> the other cells


def cells(line: str) -> list[str]:
    """Of one line of a Markdown table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@dataclass(frozen=True)
class Block:
    """A Markdown table: its lines ``start`` to ``end``, and the line of the ``heading`` above it (-1: none)."""

    lines: Sequence[str]
    start: int
    end: int
    heading: int

    def title(self) -> str:
        """The heading's words."""
        return self.lines[self.heading].strip("# ") if self.heading >= 0 else ""

    def name(self) -> tuple[str, list[str]]:
        """What tells a table from the others: its heading, whatever the numbers in it, and its first line."""
        return NUMBER.sub("#", self.title()), cells(self.lines[self.start])


def blocks(text: str) -> list[Block]:
    """The Markdown tables of a text."""
    found: list[Block] = []
    heading, lines = -1, text.splitlines()
    for at, line in enumerate(lines):
        if line.startswith("#"):
            heading = at
        elif line.startswith("|") and found and found[-1].end == at:
            found[-1] = replace(found[-1], end=at + 1)
        elif line.startswith("|"):
            found.append(Block(lines, at, at + 1, heading))
    return found


def rows(found: Iterable[Block]) -> Table:
    """Of some tables, by the heading above them and their first cell."""
    return {
        (block.title(), first): rest
        for block in found for line in block.lines[block.start : block.end]
        if not re.match(r"^\|[\s:|-]+\|$", line) for first, *rest in [cells(line)]
    }  # fmt: skip


def tables(text: str) -> Table:
    """The rows of all Markdown tables of a text."""
    return rows(blocks(text))
