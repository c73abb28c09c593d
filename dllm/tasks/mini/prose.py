"""A sentence from four words: many answers are right, and their words depend on each other."""

from __future__ import annotations

from dllm.tasks.mini.items import Draw, Make, Sample
from dllm.tasks.mini.styles import and_list
from dllm.tasks.mini.word_lists import NOUNS, PLACES, VERBS
from dllm.tasks.parallelbench import sentences


def _words_to_sentence(draw: Draw) -> Sample:
    subject, other = draw.rng.sample(NOUNS, 2)
    verb, place = draw.rng.choice(VERBS), draw.rng.choice(PLACES)
    words = [subject, other, verb, place]
    draw.rng.shuffle(words)
    answer = sentences.sentence_of(draw.rng, subject, verb, other, place)
    text = f"{', '.join(words[:3])}, and {words[3]}"
    if not draw.plain:
        text = draw.rng.choice((text, text, and_list(words), draw.list_text(words)))
    return draw.sample("words_to_sentence", {"items": text}, answer, {"words": words}, " ".join(sorted(words)), 4)


TASKS: dict[str, Make] = {"words_to_sentence": _words_to_sentence}
