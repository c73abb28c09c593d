"""Write the figures of docs/samplers.md into each sampler's page: ``python -m experiments.pages.samplers``."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from dllm.compose.parts import choices
from experiments.figures.tables import Table, tables

DOCS = Path(__file__).parents[2] / "docs"
MARK, BEFORE = "**On the mini models.**", "**Source.**"
LINK = "[The whole table](../samplers.md#what-they-do-on-the-mini-models)."
SCORE, FORWARDS, SAME = 0, 1, 3  # columns of the table behind the name


def paragraph(name: str, found: Table) -> str:
    """The figures of one sampler in a paragraph; empty for one that was not measured."""
    said = " ".join(_sentences(name, found))
    return textwrap.fill(f"{MARK} {said} {LINK}", 118, break_on_hyphens=False) if said else ""


def _sentences(name: str, found: Table) -> Iterator[str]:
    for heading, first in found:
        if first == name and heading.startswith("mini-"):
            cells = found[heading, first]
            yield (
                f"{heading.split(',')[0]}: {cells[SCORE]} % right with {cells[FORWARDS]} forwards, and for "
                f"{cells[SAME]} % of the items the text of one token per step."
            )


def with_paragraph(page: str, text: str) -> str:
    """The page with the paragraph before its source, instead of an older one."""
    kept = [part for part in page.split("\n\n") if not part.startswith(MARK)]
    at = next(number for number, part in enumerate(kept) if part.startswith(BEFORE))
    return "\n\n".join([*kept[:at], *[text] * bool(text), *kept[at:]])


def pages() -> dict[Path, str]:
    """Every sampler's page with the current figures."""
    found = tables((DOCS / "samplers.md").read_text())
    files = {name: DOCS / "samplers" / f"{name}.md" for name in choices("sampler")}
    return {file: with_paragraph(file.read_text(), paragraph(name, found)) for name, file in files.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(description=__doc__).parse_args(arguments)
    for file, text in pages().items():
        file.write_text(text)
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
