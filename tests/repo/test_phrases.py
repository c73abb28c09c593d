"""Phrases that read as translated do not come back: each has a number of places that may only fall."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A pattern, and the most places that comments, docstrings, texts and comments of YAML files may have. Lower it.
MOST = {
    r"(?<!there )\b(?:is|are) no (?!longer|more\b)": 13,
    r"\bbehind\b": 11,
    r"\b(?:lies|stands)\b(?! for| out| still)": 1,
    r"\bof which\b": 0,
    r"\bso many\b": 0,
    r"\banew\b": 1,
    r"\bthere (?:is|are) none\b": 4,
    r"\b[Nn]obody\b": 0,
    r"\b[Ww]hoever\b": 0,
}


def prose(text: str) -> Iterator[str]:
    """The comments and texts of a module."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.string


@cache
def words() -> str:
    """All prose of dllm and experiments."""
    files = [file for room in ("dllm", "experiments") for file in sorted((ROOT / room).rglob("*.py"))]
    yaml = "\n".join(file.read_text() for file in sorted((ROOT / "dllm/conf").rglob("*.yaml")))
    return "\n".join([*(one for file in files for one in prose(file.read_text())), *re.findall("#.*", yaml)])


@pytest.mark.parametrize("phrase", MOST)
def test_a_translated_phrase_does_not_spread(phrase: str) -> None:
    found = len(re.findall(phrase, words()))
    assert found <= MOST[phrase], f"{found} places: write it as a native would, or find one less elsewhere"


def test_prose_is_told_from_names() -> None:
    assert list(prose('behind = 1  # after\nx = "text"\n')) == ["# after", '"text"']
