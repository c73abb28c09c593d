"""Whether a prompt is of the kind that the mini models were trained on, and the sentence for one that is not.

The rule: a prompt is cut at commas, colons, bars, dashes and line ends. Parts that hold a word of the requests of
training are its request; it is within if there is one, if half of the request's words are known, and if there are
data, two at least: words in quotes, numbers, single capital letters and the words of the other parts. Words such as
"the" or "want" count neither way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache

from dllm.tasks.mini import wordings, words

KNOWN_SHARE = 0.5
QUOTED = re.compile(r"\"[^\"\n]*\"|(?<![A-Za-z])'[^'\n]*'(?![A-Za-z])")
BETWEEN = re.compile(r"[,;:|?\n\[\]]|\.(?=\s|$)| - ")
EXAMPLE = "Shuffle these names: Ada, Felix, Zoe"
_EMPTY = (
    "a an the this that these those it its i me my we you your he she they them their is are be was do does did not no "
    "of in on at to for from with by into over up out and or all any some one two just please thanks ok hello can "
    "could would will want need have has get got give make let now here there what which who how as next"
)
EMPTY = frozenset((*_EMPTY.split(), *wordings.FILLERS))


@cache
def asking() -> frozenset[str]:
    """Words that make a request: those of the first templates, and those that two further ones share. What one alone
    has says little: with "translate" any text was within."""
    further = Counter(word for of in wordings.FURTHER.values() for text in of for word in wordings.words_asked(text))
    return frozenset((*wordings.vocabulary(), *(word for word, count in further.items() if count > 1))) - EMPTY


@cache
def known() -> frozenset[str]:
    """These, and the words that are one token each, in lower case."""
    return asking() | {word.lower() for word in (*words.whole(), *words.NEW_NAMES, *words.THINGS)}


def request_and_data(prompt: str) -> tuple[list[str], int]:
    """The words of a prompt's request that say something, in lower case, and how many data it holds."""
    said, data = [], len(QUOTED.findall(prompt)) + len(re.findall("[0-9]+", prompt))
    for part in BETWEEN.split(QUOTED.sub(" ", prompt)):
        found = re.findall(r"[^\W\d_]+", part)
        rest = [word.lower() for word in found if len(word) > 1]
        data += sum(len(word) == 1 and word.isupper() and word not in "AI" for word in found) + rest.count("and")
        if asking() & set(rest):
            said += [word for word in rest if word not in EMPTY]
        else:
            data += len(rest)
    return said, data


def is_outside(prompt: str) -> bool:
    """Whether the models were not trained on anything like this."""
    said, data = request_and_data(prompt)
    share = sum(word in known() for word in said) / len(said) if said else 0.0
    return share < KNOWN_SHARE or data < 2


def warning(prompts: Sequence[str]) -> str | None:
    """One sentence if any of the prompts is outside, None if all are within."""
    far = sum(map(is_outside, prompts))
    if not far:
        return None
    which = "this prompt" if len(prompts) == 1 else f"{far} of these {len(prompts)} prompts"
    return (
        f"The mini models were trained on small tasks with lists, puzzles and records and know nothing like {which}, "
        f"so what they answer there means nothing; try: {EXAMPLE}"
    )
