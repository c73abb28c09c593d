"""A grammar for one kind of sentence, its generator and its parser.

    sentence = phrase verb phrase preposition "the" place "."      phrase = determiner [adjective] noun

Number agrees within a phrase and between subject and verb; "an" is before a vowel. The object has no adjective
in generated sentences; the parser allows one.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from dllm.tasks.mini.word_lists import ADJECTIVES, NOUNS, PLACES, PLURAL, PREPOSITIONS, SINGULAR, VERBS
from dllm.tasks.parallelbench.scoring import inclusion


def article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def phrase(rng: Random, noun: str, plural: bool, adjective: str | None) -> list[str]:
    """A determiner, the adjective if any, and the noun in its number."""
    rest = ([adjective] if adjective else []) + [noun + "s" if plural else noun]
    determiner = rng.choice(PLURAL if plural else SINGULAR[:4])
    return [article(rest[0]) if determiner == "a" else determiner, *rest]


def sentence_of(rng: Random, subject: str, verb: str, other: str, place: str) -> str:
    """A sentence of the grammar from its four content words."""
    plural = rng.random() < 0.5
    adjective = rng.choice(ADJECTIVES) if rng.random() < 0.5 else None
    text = phrase(rng, subject, plural, adjective) + [verb if plural else verb + "s"]
    text += phrase(rng, other, rng.random() < 0.5, None) + [rng.choice(PREPOSITIONS), "the", place]
    return " ".join([text[0].capitalize(), *text[1:]]) + "."


def parse_phrase(words: Sequence[str]) -> tuple[bool, list[str]] | None:
    """Whether a phrase at the start of the words is plural, and the words after it; else None."""
    if not words:
        return None
    determiner, rest = words[0], list(words[1:])
    if determiner in ("a", "an") and not (rest and rest[0] and article(rest[0]) == determiner):
        return None
    if rest and rest[0] in ADJECTIVES:
        rest = rest[1:]
    if not rest:
        return None
    plural = rest[0] not in NOUNS
    fits = rest[0].removesuffix("s") in NOUNS and determiner in (PLURAL if plural else SINGULAR)
    return (plural, rest[1:]) if fits else None


def grammatical(text: str) -> bool:
    """Whether the text is one sentence of the grammar."""
    if not text.endswith(".") or not text[0].isupper():
        return False
    subject = parse_phrase((text[0].lower() + text[1:-1]).split(" "))
    if subject is None or not subject[1]:
        return False
    plural, (verb, *rest) = subject
    other = parse_phrase(rest)
    if other is None or (verb if plural else verb.removesuffix("s")) not in VERBS or (not plural and verb in VERBS):
        return False
    match other[1]:
        case [preposition, "the", place]:
            return preposition in PREPOSITIONS and place in PLACES
    return False


def sentence_scores(prediction: str, words: Sequence[str]) -> dict[str, float]:
    """Inclusion of all words and grammar, both needed for ``score``."""
    has_all = inclusion(prediction, words)
    grammar = float(grammatical(prediction.strip()))
    return {"score": has_all * grammar, "inclusion_score": has_all, "grammar_score": grammar}
