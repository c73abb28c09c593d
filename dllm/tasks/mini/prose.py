"""A sentence from four words: many answers are right, and their words depend on each other."""

from __future__ import annotations

from dllm.tasks.mini.items import Draw, Make, Sample
from dllm.tasks.mini.styles import spoken
from dllm.tasks.mini.word_lists import NOUNS, PLACES, VERBS
from dllm.tasks.parallelbench import sentences


def _words_to_sentence(draw: Draw) -> Sample:
    subject, other = draw.rng.sample(NOUNS, 2)
    verb, place = draw.rng.choice(VERBS), draw.rng.choice(PLACES)
    given = [subject, other, verb, place]
    draw.rng.shuffle(given)
    answer = sentences.sentence_of(draw.rng, subject, verb, other, place)
    listed = f"{', '.join(given[:3])}, and {given[3]}"
    if not draw.plain:
        listed = draw.rng.choice((listed, listed, spoken(given), draw.listed(given)))
    return draw.sample("words_to_sentence", {"items": listed}, answer, {"words": given}, " ".join(sorted(given)), 4)


TASKS: dict[str, Make] = {"words_to_sentence": _words_to_sentence}
