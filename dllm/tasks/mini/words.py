"""What items are made of: words that are one token each, words that are spelt, and words that training never saw.

A spelt word is several tokens of the mini models' tokenizer. The hash of a word decides whether training may see it.
"""

from __future__ import annotations

import zlib
from functools import cache
from random import Random

from dllm.tasks.parallelbench import vocabulary

NAMES, NOUNS, VERBS, PLACES = vocabulary.FIRST_NAMES, vocabulary.NOUNS, vocabulary.VERBS, vocabulary.PLACES
ADJECTIVES, PREPOSITIONS = vocabulary.ADJECTIVES, vocabulary.PREPOSITIONS
TOWNS = (
    "Oslo", "Rome", "Paris", "Lima", "Cairo", "Delhi", "Tokyo", "Quito", "Berlin", "Dublin", "Havana", "Lisbon",
    "Madrid", "Milan", "Nairobi", "Prague",
)  # fmt: skip
PETS = ("dog", "cat", "horse", "rabbit", "tiger", "owl", "eagle", "parrot", "hamster", "turtle", "goat", "pony")
SYMBOLS = vocabulary.MINI_SYMBOLS
ODD_PASTS = {"draw": "drew", "admire": "admired"}
PAST = {verb: ODD_PASTS.get(verb, verb + "ed") for verb in VERBS}
# How a sentence of a story begins: the first, those between (each at most once), the last.
FIRST = ("One morning", "One day", "Once", "Long ago")
BETWEEN = ("Then", "Later", "Soon", "After that", "Next", "Suddenly", "Afterwards", "Meanwhile", "The same day")
LAST = ("Finally", "In the end", "At last")

UNSEEN_SHARE = 8  # one spelt word in eight is never trained on
SYLLABLE = {  # beginnings, middles and ends of what words are invented from
    "onset": "b br c ch cl d dr f fl g gr h j k kr l m n p pl r s sh st t th tr v w y z",
    "vowel": "a e i o u ai ea ee ie oo",
    "coda": "l ll m n nd r rt s st t x ck ng" + 8 * " -",
}
ONSETS, VOWELS, CODAS = ([one.strip("-") for one in text.split()] for text in SYLLABLE.values())


def unseen(word: str) -> bool:
    """Whether training never sees this word, unless it is one token."""
    return zlib.crc32(word.lower().encode()) % UNSEEN_SHARE == 0


@cache
def whole() -> frozenset[str]:
    """Words that items are made of and that are one token each."""
    return frozenset((*NAMES, *TOWNS, *PETS, *NOUNS, *PLACES, *VERBS, *ADJECTIVES, *PREPOSITIONS))


@cache
def spelt(seen: bool) -> tuple[str, ...]:
    """Real words, names above all, that training may see, or that it never sees."""
    full = vocabulary.FULL_NAMES
    names = {part for name in full for part in name.split()}
    themes = {word for group in (vocabulary.EVERYDAY, vocabulary.RARE) for words in group.values() for word in words}
    return tuple(sorted(word for word in names | themes if word not in whole() and unseen(word) != seen))


def invented(rng: Random, seen: bool = True) -> str:
    """A word of two or three syllables that nobody uses, mostly written like a name."""
    while True:
        syllables = [rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(rng.choice((1, 2, 2, 2, 3)))]
        word = "".join(syllables) + rng.choice(CODAS)
        if unseen(word) != seen and 3 <= len(word) <= 9:
            return word.capitalize() if rng.random() < 0.75 else word


def spelt_word(rng: Random, seen: bool = True) -> str:
    """A real word, or three times in ten an invented one."""
    return rng.choice(spelt(seen)) if rng.random() < 0.7 else invented(rng, seen)
