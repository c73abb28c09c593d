"""How tasks are asked: templates that training sees, and templates that it never sees, some of them by writers of whom
it sees nothing or with words that it never meets.

``(a|b)`` is a choice, ``{items}``, ``{word}`` and ``{at}`` are filled in; what a template does not name is
put after it. The first template of each task is the plain one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

REQUEST_WITHIN = 400  # characters from the beginning and the end of a prompt, within which it says what it asks for
HELD_BACK = 6  # one further template in six is never trained on, by its hash


def held_out(template: str) -> bool:
    return zlib.crc32(template.encode()) % HELD_BACK == 0


@cache
def read(name: str) -> dict[str, tuple[str, ...]]:
    """The templates of a file, by task."""
    text = (files(__package__) / name).read_text(encoding="utf-8")
    sections = (section.strip().splitlines() for section in text.split("\n\n"))
    return {head.strip("[]"): tuple(templates) for head, *templates in sections}


def more() -> dict[str, tuple[str, ...]]:
    """Further templates of each task, as different people would ask."""
    return read("more_wordings.txt")


def many() -> dict[str, tuple[str, ...]]:
    """Nine times as many, a third of them nearly all of words that the others hold, too."""
    return read("many_wordings.txt")


def all_further() -> dict[str, tuple[str, ...]]:
    """All of these, one in six held back."""
    return {task: (*of, *many()[task]) for task, of in more().items()}


def others() -> dict[str, tuple[str, ...]]:
    """Templates of two writers that training never sees."""
    return read("others_wordings.txt")


def _training_part(templates: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Without those held back."""
    return {task: tuple(text for text in of if not held_out(text)) for task, of in templates.items()}


TRAINED = read("trained_wordings.txt")
FURTHER, MANY = _training_part(more()), _training_part(many())  # what mini-llada and mini-dream see besides TRAINED
BEFORE = (
    "Please ", "Can you ", "Could you ", "Now ", "I want you to ", "Your task: ", "Hello! ", "OK, ",
    "I would like you to ", "Would you ", "We have to ", "Let us ", "You should ", "I must ", "My task is to ",
    "Here is a list. ", "Hi, ",
)  # fmt: skip
AFTER = (
    "please",
    "thanks",
    "for me",
    "now",
    "if you can",
    "right now",
    "as you like",
    "would you",
    "thank you",
    "for us",
)
# Words that a request may hold without a meaning for its task; each is one token. Training strews them, and
# invented words, into half of its requests: without them "Just copy it" and other words that were never met
# took the fifth recipe from 94 to 45 of 100.
_IDLE = (
    "a about actually all also am an and any are as at be because been being below both but by did do does down each "
    "even exactly few fine following get getting give given go going good got great had has have he hello her here "
    "him his hope how i if in into is it its itself just kindly know let like little long look lot made make many "
    "maybe me might more most much must my need nice nicely now of off ok on only or our over own perfectly perhaps "
    "properly quickly quite really see shall she should show simple simply small so some something soon still such "
    "take tell than that the their them then there they thing think this those time to today too try two under up us "
    "use used very want was way we well were what when where which while who will wish work would yes you your"
)
FILLERS = tuple(_IDLE.split())
SEPARATORS = (":\n", ": ", "\n", ":", " ", ":\n\n", ". ", "? ", " - ", ";\n", ".\n")
LABELS = ("People", "Towns", "Names")  # of lists in a request


def request_words(text: str) -> set[str]:
    """The words of templates, in lower case."""
    return set(re.findall("[a-z]+", re.sub(r"\{\w+\}", " ", text).lower()))


@cache
def vocabulary() -> tuple[str, ...]:
    """The words of TRAINED and of what is around requests, in lower case."""
    texts = [text for templates in TRAINED.values() for text in templates]
    return tuple(sorted({*request_words(" ".join([*texts, *BEFORE, *AFTER, *LABELS])), "name", "age", "town"}))


@cache
def further_vocabulary() -> tuple[str, ...]:
    """The words that FURTHER alone brings, in lower case: one token each, those that MANY brings are spelt."""
    return tuple(sorted(_words_of(FURTHER) - {*vocabulary(), *FILLERS}))


def _words_of(templates: Mapping[str, Sequence[str]]) -> set[str]:
    return {word for of in templates.values() for text in of for word in request_words(text)}


@cache
def training_words() -> frozenset[str]:
    return frozenset((*vocabulary(), *FILLERS, *_words_of(FURTHER), *_words_of(MANY)))


def _held_out_part(odd: bool) -> dict[str, tuple[str, ...]]:
    """Held-back templates: of words that training meets in others, or with a word that it never meets."""
    return {
        task: tuple(
            text for text in all_further()[task] if held_out(text) and (request_words(text) <= training_words()) != odd
        )
        for task in TRAINED
    }


UNSEEN, STRANGE = _held_out_part(odd=False), _held_out_part(odd=True)
SOURCES = {"trained": TRAINED, "more": FURTHER, "many": MANY, "unseen": UNSEEN, "others": others(), "strange": STRANGE}


def is_request(prompt: str) -> bool:
    """Whether a prompt asks for a task of the mini models: some template is in it, in any case. One without a word
    asks for nothing else."""
    prompt = prompt[:REQUEST_WITHIN] + prompt[-REQUEST_WITHIN:] if len(prompt) > 2 * REQUEST_WITHIN else prompt
    words = request_words(prompt)
    return not words or any(
        re.search(_pattern(text), prompt, re.IGNORECASE | re.DOTALL)
        for templates in SOURCES.values()
        for of in templates.values()
        for text in of
        if _certain_words(text) <= words
    )


def _certain_words(template: str) -> set[str]:
    """The words that every text of a template holds."""
    return request_words(re.sub(r"\([^()]*\)", " ", template))


def _pattern(template: str) -> str:
    """A regular expression of a template's texts, between other words."""
    text = re.sub(r"[.?*+^$\[\]\\]", lambda match: "\\" + match[0], template)
    text = re.sub(" +", r"\\s*", text)  # around a word that may be absent there are two
    return r"(?<!\w)" + re.sub(r"\{\w+\}", ".+", text) + r"(?!\w)"
