"""docs/serving_fields.md has the tables that the models of a request make."""

from __future__ import annotations

import pytest

from experiments.pages.request_fields import PAGE, tables, takes
from experiments.support.marked import marks


@pytest.mark.parametrize("mark", tables())
def test_the_page_is_what_the_command_writes(mark: str) -> None:
    begin, end = marks(mark)
    assert PAGE.read_text("utf-8").partition(begin)[2].partition(end)[0] == f"\n\n{tables()[mark]}\n"


def test_what_a_field_takes_is_told_in_a_few_words() -> None:
    assert (
        takes({"anyOf": [{"type": "integer", "minimum": 0, "maximum": 20}, {"type": "null"}]})
        == "integer, from 0, to 20"
    )
    assert takes({"type": "number", "exclusiveMinimum": 0, "maximum": 1}) == "number, above 0, to 1"
    assert takes({"type": "integer", "maximum": 2**62}) == "integer" and takes({"$ref": "#/A"}) == "object"
