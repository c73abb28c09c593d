"""The table of what goes with what is what the parts say today, and says what decoding says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dllm import Decoder, UserError, load, part
from dllm.compose.parts import choices
from dllm.laws.compatibility import REQUIRED_OPTIONS, compatibility_page

FILE = Path(__file__).parents[2] / "docs" / "compatibility.md"


def tables() -> list[dict[str, dict[str, str]]]:
    """Every table of the page: cache -> sampler or policy -> cell, those of a shared column as well."""
    found: list[dict[str, dict[str, str]]] = []
    for part_of_page in FILE.read_text().split("\n## ")[1:-1]:
        shared = re.findall(r"^- As `(\w+)`: ([^.]*)\.", part_of_page, re.MULTILINE)
        alike = {first: [first, *re.findall(r"`(\w+)`", others)] for first, others in shared}
        head, _, *rows = ([cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines_of(part_of_page))
        found.append({})
        for cache, *cells in rows:
            columns = zip(head[1:], cells, strict=True)
            found[-1][cache] = {name: cell for first, cell in columns for name in alike.get(first, [first])}
    return found


def lines_of(text: str) -> list[str]:
    """The lines of its table."""
    return [line for line in text.splitlines() if line.startswith("|")]


@pytest.mark.program
def test_the_page_in_the_docs_is_current() -> None:
    page = compatibility_page()
    assert FILE.read_text() == page, "run: python -m dllm.laws.compatibility > docs/compatibility.md"


NOISE = ["ancestral", "renoise"]  # samplers of models of noise


def test_the_table_names_every_part() -> None:
    *kinds, noise, policies = tables()
    masks = [name for name in choices("sampler") if name not in NOISE]
    for table, names in (*((table, masks) for table in kinds), (noise, NOISE), (policies, choices("eos"))):
        assert list(table) == choices("cache")
        assert all(sorted(row) == sorted(names) for row in table.values())


def test_every_number_has_its_reason() -> None:
    text = FILE.read_text()
    numbers = {cell for table in tables() for row in table.values() for cell in row.values() if cell.isdigit()}
    assert numbers == set(re.findall(r"^(\d+)\. ", text.split("## Reasons")[1], re.MULTILINE))


def test_the_table_says_what_a_decoder_says() -> None:
    """A cell of the first two tables against an attempt with the mini model itself."""
    for table, name in zip(tables(), ("mini-llada", "mini-dream"), strict=False):
        model = load(name)
        pairs = (("confidence", "dual"), ("order", "dkv_greedy"), ("prophet", "dual"), ("wino", "prefix"))
        for sampler, cache in pairs:
            rule = part("sampler", sampler, **REQUIRED_OPTIONS.get(("sampler", sampler), {}))
            try:
                Decoder(model, rule, "fixed", cache, "none", gen_length=32)
                works = True
            except UserError:
                works = False
            assert works == (not table[cache][sampler].isdigit()), (name, sampler, cache)
