"""The words of the questions. Every word of the mini suite is one token of its models' tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_MINI: dict[str, str] = json.loads((_HERE / "mini_vocabulary.json").read_text())
_FULL: dict[str, Any] = json.loads((_HERE / "names_and_themes.json").read_text())


def _words(kind: str) -> tuple[str, ...]:
    return tuple(_MINI[kind].split())


FIRST_NAMES = _words("names")
NOUNS, VERBS, PLACES = _words("nouns"), _words("verbs"), _words("places")
ADJECTIVES, PREPOSITIONS = _words("adjectives"), _words("prepositions")
SINGULAR, PLURAL = _words("singular"), _words("plural")  # determiners
MINI_SYMBOLS = tuple("ABCDEFGHIJKL")

# 92 x 192 = 17,664 full names, as many as the benchmark draws from.
FULL_NAMES = tuple(f"{first} {last}" for first in _FULL["first_names"].split() for last in _FULL["last_names"].split())
EVERYDAY = {theme: tuple(text.split()) for theme, text in _FULL["everyday"].items()}
RARE = {theme: tuple(text.split()) for theme, text in _FULL["rare"].items()}
