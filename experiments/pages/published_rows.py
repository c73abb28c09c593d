"""The table of docs/evaluation.md that the site makes: every published file, what was read, and what is still open."""

from __future__ import annotations

from collections.abc import Iterator

from dllm.compose.config_choices import choices
from dllm.compose.parts import composed, plain_config
from dllm.record.published import PaperRow, rows_of_table
from experiments.support.markdown import table

HEADS = ("experiment", "what was read", "rows with figures", "still open")


def lines() -> Iterator[tuple[str, str, str, str]]:
    for name in choices("experiment"):
        if name.startswith("published/"):
            rows = rows_of_table(plain_config(composed([f"experiment={name}"]))["published"])
            with_figures = sum(row.has_figures for row in rows)
            read = "; ".join(dict.fromkeys(row.source for row in rows))
            yield f"`{name}`", read, f"{with_figures} of {len(rows)}", open_rows(rows)


def open_rows(rows: list[PaperRow]) -> str:
    """The rows without figures, by the settings that are typed for them, and the notes that say why."""
    lacking = [row for row in rows if not row.has_figures]
    settings = ", ".join(f"`{row.settings}`" if row.settings else "the first row" for row in lacking)
    where = "" if not lacking else "all" if len(lacking) == len(rows) else settings
    notes = ". ".join(dict.fromkeys(row.note for row in lacking if row.note))
    return f"{where}: {notes}" if where and notes else where


def section() -> str:
    return table(HEADS, lines(), len(HEADS)) + "\n"
