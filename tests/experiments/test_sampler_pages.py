"""The pages of the samplers repeat what the table found, and nothing else."""

from __future__ import annotations

from experiments.figures.tables import tables
from experiments.pages.samplers import BEFORE, DOCS, MARK, pages, paragraph, with_paragraph


def test_every_page_is_current() -> None:
    measured = {name for heading, name in tables((DOCS / "samplers.md").read_text()) if heading.startswith("mini-")}
    for file, text in pages().items():
        assert file.read_text() == text, f"{file.name}: run python -m experiments.pages.samplers"
        assert text.count(MARK) == ("% right with" in text) == (file.stem in measured), file.name
        assert "**The paper's numbers.**" in text


def test_a_paragraph_replaces_the_older_one() -> None:
    page = f"# x\n\nWords.\n\n{BEFORE} A paper.\n"
    once = with_paragraph(page, f"{MARK} one")
    assert once == f"# x\n\nWords.\n\n{MARK} one\n\n{BEFORE} A paper.\n"
    assert with_paragraph(once, f"{MARK} two") == once.replace("one", "two")


def test_the_figures_come_from_the_columns_of_the_table() -> None:
    found = {("mini-llada, 2 items", "x"): ["99 (97-100)", "3.8 ±0.5", "6.1 ±0.7", "88 (82-91)", "6 %", "0.2", "0.4"]}
    text = paragraph("x", found).replace("\n", " ")
    assert "mini-llada: 99 (97-100) % right with 3.8 ±0.5 forwards, and for 88 (82-91) % of the items" in text
