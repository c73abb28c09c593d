"""The closed vocabulary of the mini suite: every word is one token of the mini models' tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

_WORDS: dict[str, str] = json.loads(Path(__file__).with_name("mini_vocabulary.json").read_text())


def _words(kind: str) -> tuple[str, ...]:
    return tuple(_WORDS[kind].split())


NAMES = _words("names")
NOUNS, VERBS, PLACES = _words("nouns"), _words("verbs"), _words("places")
ADJECTIVES, PREPOSITIONS = _words("adjectives"), _words("prepositions")
SINGULAR, PLURAL = _words("singular"), _words("plural")  # determiners
WORDING = _words("wording")  # what the prompts are made of
SYMBOLS = tuple("ABCDEFGHIJKL")
