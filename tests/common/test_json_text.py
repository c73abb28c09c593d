"""JSON as the text that it is. json.loads judges what is an object, with numbers as text."""

from __future__ import annotations

import json
import random

import pytest

from dllm.parts import as_object, end_of_value, escaped, loaded, members

VALUES = ("1e999", "-0", "0.1234567890123456789012345", "9" * 5000, '"\\ud83d"', '"a\\"}"', "{}", "[ 1 , {} ]", "null")


def test_members_are_their_own_text() -> None:
    draw = random.Random(0)
    for _ in range(200):
        said = {name: draw.choice(VALUES) for name in draw.sample(["a", "b", '\\"', "}", ""], draw.randint(0, 4))}
        space = lambda: "".join(draw.choices(" \t\n\r", k=draw.randint(0, 2)))  # noqa: E731
        inside = ",".join(
            f"{space()}{json.dumps(name)}{space()}:{space()}{value}{space()}" for name, value in said.items()
        )
        text = f"{space()}{{{inside or space()}}}{space()}"
        assert members(text) == said and end_of_value(f"{text}x", 0) == len(text)
        assert as_object(text) == text.strip() and as_object(json.dumps(text)) == text.strip()
        assert isinstance(loaded(text), dict)
        for cut in range(len(text.strip())):
            with pytest.raises(ValueError):
                members(text.strip()[:cut])


NONE = ["[]", "5", '"a"', "NaN", '{"a": NaN}', '{"a": 01}', "{} {}", "{'a': 1}", '{"a": "\n"}', '"[]"', '"', '{"a" 1}']


@pytest.mark.parametrize("text", [*NONE, '{"a":' * 100_000], ids=range(len(NONE) + 1))
def test_what_is_no_object(text: str) -> None:
    assert as_object(text) is None
    with pytest.raises(ValueError):
        members(text)


def test_values_that_python_cannot_hold_are_the_texts_that_they_are() -> None:
    assert [as_object(text) for text in ("", " ", "null", '""')] == ["{}"] * 4
    assert loaded(r'["\\ud83d", "\ud83d\ude00", "\ud83dx", "\ude00", "\\\ud83d"]') == [
        r"\ud83d",
        "\U0001f600",
        r"\ud83dx",
        r"\ude00",
        "\\\\ud83d",
    ]
    assert loaded("[1e999, 1.5, 12]") == ["1e999", 1.5, 12] and loaded("9" * 5000) == "9" * 5000
    assert escaped("a\ud83db\U0001f600") == "a\\ud83db\U0001f600"
