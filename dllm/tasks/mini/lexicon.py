"""What items are made of: names that are one token each (training sees a third of them), and spelt words.

A spelt word is several tokens of the mini models' tokenizer. The hash of a word decides whether training may see it.
"""

from __future__ import annotations

import zlib
from functools import cache
from importlib.resources import files
from itertools import chain
from random import Random

from dllm.tasks.mini import word_lists

TOWNS = (
    "Oslo", "Rome", "Paris", "Lima", "Cairo", "Delhi", "Tokyo", "Quito", "Berlin", "Dublin", "Havana", "Lisbon",
    "Madrid", "Milan", "Nairobi", "Prague",
)  # fmt: skip

UNSEEN_SHARE = 8  # one name or spelt word in eight is never trained on
SYLLABLE = {  # beginnings, middles and ends of what words are invented from
    "onset": "b br c ch cl d dr f fl g gr h j k kr l m n p pl r s sh st t th tr v w y z",
    "vowel": "a e i o u ai ea ee ie oo",
    "coda": "l ll m n nd r rt s st t x ck ng" + 8 * " -",
}
ONSETS, VOWELS, CODAS = ([syllable.strip("-") for syllable in text.split()] for text in SYLLABLE.values())


def unseen(word: str) -> bool:
    """Whether training never sees this word, unless it is one token."""
    return zlib.crc32(word.lower().encode()) % UNSEEN_SHARE == 0


def _words_in(name: str) -> list[str]:
    return (files(__package__) / name).read_text(encoding="utf-8").split()


def _common(word: str) -> bool:
    """One name in three is trained on, besides those that always are: with three times as many, lists took longer to
    learn than a run lasts."""
    return word in _ALWAYS or zlib.crc32(word.lower().encode()) // UNSEEN_SHARE % 3 == 0


_SENTENCES = (word_lists.NOUNS, word_lists.PLACES, word_lists.VERBS, word_lists.ADJECTIVES, word_lists.PREPOSITIONS)
_ALWAYS = frozenset((*word_lists.FIRST_NAMES, *TOWNS, *chain(*_SENTENCES)))
_FULL = tuple(part for name in word_lists.FULL_NAMES for part in name.split())
_FIRST = tuple(dict.fromkeys((*word_lists.FIRST_NAMES, *_words_in("names.txt"), *_FULL)))  # and last names
_ALL = tuple(dict.fromkeys((*_FIRST, *_words_in("more_names.txt"))))
_TEST_NAMES = frozenset(word for word in _ALL if unseen(word) and len(word) > 4 and word not in _ALWAYS)
NAMES = tuple(word for word in _FIRST if word not in _TEST_NAMES and _common(word))
# One token each, too, but never trained on, in no case.
NEW_NAMES = tuple(word for word in _ALL if word not in NAMES and word.lower() not in _ALWAYS)
THINGS = tuple(word for word in _words_in("things.txt") if word not in _ALWAYS and word not in _ALL)  # nor are these
_TOKENS = frozenset((*_ALL, *THINGS))


@cache
def whole() -> frozenset[str]:
    """Words that items of training are made of and that are one token each."""
    return _ALWAYS | frozenset(NAMES)


def invent(rng: Random, is_seen: bool = True) -> str:
    """A word of two or three syllables that does not exist, mostly written like a name."""
    while True:
        syllables = [rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(rng.choice((1, 2, 2, 2, 3)))]
        word = "".join(syllables) + rng.choice(CODAS)
        if unseen(word) != is_seen and 3 <= len(word) <= 9 and not {word, word.capitalize()} & _TOKENS:
            return word.capitalize() if rng.random() < 0.75 else word
