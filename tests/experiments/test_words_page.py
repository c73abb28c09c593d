"""The table of words says what the messages say."""

from __future__ import annotations

from dllm.parts import INSTEAD, SETTINGS
from experiments.pages.words import section


def test_the_table_has_every_word() -> None:
    missing = [word for word in (*SETTINGS, *INSTEAD) if f"`{word}`" not in section() and f"`{word}=" not in section()]
    assert missing == []


def test_what_is_written_stands_beside_its_words() -> None:
    rows = dict(line.strip("| ").split(" | ") for line in section().splitlines()[2:])
    (words,) = [words for words, here in rows.items() if here == "`gen_length=VALUE`"]
    assert "`max_tokens`" in words and "`max_new_tokens`" in words
    assert rows["`remasking=random`"] == "`sampler=static sampler.score=random`"
