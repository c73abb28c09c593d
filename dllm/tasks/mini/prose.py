"""A sentence from four words, and a story from a list of events: many answers are right, and their words depend on
each other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from dllm.tasks.mini import words
from dllm.tasks.mini.items import Draw, Make, Sample
from dllm.tasks.mini.styles import spoken, write_rows
from dllm.tasks.mini.words import ADJECTIVES, BETWEEN, FIRST, LAST, NOUNS, PAST, PLACES, PREPOSITIONS, VERBS
from dllm.tasks.parallelbench import sentences

EVENTS = (5, 8)
Event = tuple[str, str, str, str]  # name, verb, noun, place


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


def _told(rng: Random, opening: str, event: Event) -> str:
    name, verb, noun, place = event
    adjective = rng.choice(ADJECTIVES) if rng.random() < 0.4 else ""
    thing = " ".join(part for part in (adjective, noun) if part)
    article = "the" if rng.random() < 0.4 else sentences.article(thing)
    return f"{opening} {name} {PAST[verb]} {article} {thing} {rng.choice(PREPOSITIONS)} the {place}."


def _story(draw: Draw) -> Sample:
    size = draw.size(*EVENTS)
    names, nouns = draw.some(size), draw.rng.sample(NOUNS, size)
    rest = [(draw.rng.choice(VERBS), noun, draw.rng.choice(PLACES)) for noun in nouns]
    events: list[Event] = [(name, *event) for name, event in zip(names, rest, strict=True)]
    openings = [draw.rng.choice(FIRST), *draw.rng.sample(BETWEEN, size - 2), draw.rng.choice(LAST)]
    answer = " ".join(_told(draw.rng, opening, event) for opening, event in zip(openings, events, strict=True))
    slots = {"items": write_rows(events, draw.rng, draw.plain)}
    return draw.sample("story", slots, answer, {"events": [list(event) for event in events]}, " ".join(names), size)


_NAMED = re.compile(
    rf"({'|'.join(FIRST + BETWEEN + LAST)}) (\S+) ({'|'.join(PAST.values())}) (a|an|the) (?:({'|'.join(ADJECTIVES)}) )?"
    rf"(\w+) ({'|'.join(PREPOSITIONS)}) the (\w+)\."
)


def judge_story(prediction: str, events: Sequence[Sequence[str]]) -> dict[str, float]:
    """One sentence for each event, in order, an opening that suits its place, none twice, and the right article."""
    told = [_NAMED.fullmatch(sentence) for sentence in re.split(r"(?<=\.) ", prediction.strip())]
    good = len(told) == len(events) and all(told)
    openings = [found[1] for found in told if found]
    good = good and len(set(openings)) == len(openings) and openings[0] in FIRST and openings[-1] in LAST
    good = good and all(opening in BETWEEN for opening in openings[1:-1])
    for found, (name, verb, noun, place) in zip(told, events, strict=False):
        if found is None or not good:
            return {"score": 0.0}
        _, who, did, article, adjective, thing, _, where = found.groups()
        good = (who, did, thing, where) == (name, PAST[verb], noun, place)
        good = good and article in ("the", sentences.article(adjective or thing))
    return {"score": float(good)}


TASKS: dict[str, Make] = {"words_to_sentence": _words_to_sentence, "story": _story}
assert set(PAST) == set(words.VERBS)
