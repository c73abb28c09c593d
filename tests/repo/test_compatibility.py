"""The table of what goes with what is what the parts say today, and says what decoding says."""

from __future__ import annotations

import re
from pathlib import Path

from dllm import Decoder, UserError, load, part
from dllm.analysis.compatibility import REQUIRED_OPTIONS, compatibility_page
from dllm.compose.parts import choices

FILE = Path(__file__).parents[2] / "docs" / "compatibility.md"


def tables() -> list[dict[str, dict[str, str]]]:
    """Every table of the page: row -> column -> cell."""
    found: list[dict[str, dict[str, str]]] = []
    columns: list[str] = []
    for line in FILE.read_text().splitlines():
        cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
        if line.startswith(("| sampler", "| eos")):
            columns = cells[1:]
            found.append({})
        elif line.startswith("| `"):
            found[-1][cells[0]] = dict(zip(columns, cells[1:], strict=True))
    return found


def test_the_page_in_the_docs_is_current() -> None:
    page = compatibility_page()
    assert FILE.read_text() == page, "run: python -m dllm.analysis.compatibility > docs/compatibility.md"


def test_the_table_names_every_part() -> None:
    for table in tables()[:-1]:
        assert list(table) == choices("sampler")
        assert all(list(row) == choices("cache") for row in table.values())
    assert list(tables()[-1]) == choices("eos")


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
                Decoder(model, rule, "fixed", cache, "keep", gen_length=32)
                works = True
            except UserError:
                works = False
            assert works == (not table[sampler][cache].isdigit()), (name, sampler, cache)
