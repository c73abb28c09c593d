"""Texts that UTF-8 can write, and what to say of those that it cannot."""

from __future__ import annotations

import re

from dllm.errors import UserError

_HALVES = re.compile("[\ud800-\udfff]")  # of surrogate pairs: in JSON as \ud83d, or in place of a byte outside UTF-8


def unwritable(text: str) -> str | None:
    """What is wrong with a text that no UTF-8 can write, as the end of a sentence. None: it can be written."""
    return "holds half of a surrogate pair, which is no character" if _HALVES.search(text) else None


def refuse_unwritable(what: str, text: str) -> None:
    """Raise UserError for a text that no UTF-8 can write. what: its name in the sentence."""
    if (problem := unwritable(text)) is not None:
        shown = ascii(text if len(text) <= 60 else f"{text[:60]}...")
        raise UserError(f"{what} {shown} {problem}. Write the whole character, or drop it.")
