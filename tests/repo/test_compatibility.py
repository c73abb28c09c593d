"""The table of what goes with what is what the parts say today, and says what decoding says."""

from __future__ import annotations

import re
from functools import lru_cache

import pytest

from dllm import Decoder, UserError, load, part
from dllm.parts import REQUIRED_OPTIONS, choices, compatibility_page

page = lru_cache(1)(compatibility_page)  # of a minute
pytestmark = pytest.mark.program


def tables() -> list[dict[str, dict[str, str]]]:
    """Every table of the page: cache -> sampler or policy -> cell, with the cells that the lines above it stand for."""
    found: list[dict[str, dict[str, str]]] = []
    for part_of_page in page().split("\n## ")[1:-1]:
        lines = re.findall(r"^- ([^:]*): ([^.]*)\.", part_of_page, re.MULTILINE)
        said = [(head, re.findall(r"`(\w+)`", names)) for head, names in lines]
        table = own_cells(part_of_page, {head[4:-1]: names for head, names in said if head.startswith("As `")})
        columns = dict.fromkeys(name for row in table.values() for name in row)
        columns |= dict.fromkeys(name for head, names in said if head.startswith("With every cache") for name in names)
        for head, names in said:
            number = "".join(re.findall(r"\((\d+)\)", head))
            for name in names:
                if head.startswith("With every cache"):
                    for cache in choices("cache"):
                        table.setdefault(cache, {}).setdefault(name, number)
                elif head.startswith("In every column"):
                    table[name] = dict.fromkeys(columns, number) | table.get(name, {})
                elif head == "As in the first table":
                    table[name] = {key: cell for key, cell in found[0][name].items() if key in columns} | table[name]
        found.append({cache: table[cache] for cache in choices("cache")})
    return found


def own_cells(text: str, alike: dict[str, list[str]]) -> dict[str, dict[str, str]]:
    """The cells of the table itself. alike: the columns that each column stands for besides itself."""
    head, _, *rows = ([cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines_of(text))
    return {
        cache: {
            name: cell for first, cell in zip(head[1:], cells, strict=True) for name in (first, *alike.get(first, []))
        }
        for caches, *cells in rows
        for cache in re.findall(r"\w+", caches)
    }


def lines_of(text: str) -> list[str]:
    """The lines of its table."""
    return [line for line in text.splitlines() if line.startswith("|")]


NOISE = ["ancestral", "renoise"]  # samplers of models of noise


def test_the_table_names_every_part() -> None:
    *kinds, noise, policies = tables()
    masks = [name for name in choices("sampler") if name not in NOISE]
    for table, names in (*((table, masks) for table in kinds), (noise, NOISE), (policies, choices("eos"))):
        assert list(table) == choices("cache")
        assert all(sorted(row) == sorted(names) for row in table.values())


def test_every_number_has_its_reason() -> None:
    text = page()
    tables_alone = text.split("## Reasons")[0]
    numbers = {
        *re.findall(r"\| (\d+) (?=\|)", tables_alone),
        *re.findall(r"^- \D*\((\d+)\):", tables_alone, re.MULTILINE),
    }
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
