"""Whether a prompt is of the kind that the mini models were trained on, and the sentence for one that is not, or whose
data they have to spell.

The rule: a prompt is cut at commas, colons, bars, dashes and line ends. Parts that hold a word of the requests of
training are its request; it is within if there is one, if half of the request's words are known, and if there are
data, two at least: words in quotes, numbers, single capital letters, the names that training had, and the words of the
other parts. Words such as
"the" or "want" count neither way. A word of the data is spelt if it is not one token as it is written ("Kai" is, "kai"
is not): the mini models get one list in six right that holds one such name, and next to none that holds more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

from dllm.mini import lexicon, wordings

KNOWN_SHARE = 0.5
SHOWN = 3  # words that the sentence names
# So many different words in lower case that the models never met are a text of another kind. Of 175 seed instructions
# of Self-Instruct 6 pass, without this rule 16; of 3,600 items of training's tasks in names and wordings that it never
# saw, it stops 2.
MOST_STRANGE = 5
WORD = re.compile(r"[^\W\d_]+")
QUOTED = re.compile(r"\"[^\"\n]*\"|(?<![A-Za-z])'[^'\n]*'(?![A-Za-z])")
BETWEEN = re.compile(r"[,;:|?\n\[\]]|\.(?=\s|$)| - ")
EXAMPLE = "Shuffle these names: Ada, Felix, Zoe"
_STOP_WORDS = (
    "a an the this that these those it its i me my we you your he she they them their is are be was do does did not no "
    "of in on at to for from with by into over up out and or all any some one two just please thanks ok hello can "
    "could would will want need have has get got give make let now here there what which who how as next"
)
STOP_WORDS = frozenset((*_STOP_WORDS.split(), *wordings.FILLERS))


@cache
def asking() -> frozenset[str]:
    """Words that make a request: those of the first templates, and those that two further ones share. What one alone
    has says little: with "translate" any text was within."""
    further = Counter(word for of in wordings.FURTHER.values() for text in of for word in wordings.words_asked(text))
    return frozenset((*wordings.vocabulary(), *(word for word, count in further.items() if count > 1))) - STOP_WORDS


@cache
def known() -> frozenset[str]:
    """These, and the words that are one token each, in lower case."""
    return asking() | {word.lower() for word in (*lexicon.whole(), *lexicon.NEW_NAMES, *lexicon.THINGS)}


@cache
def names_known() -> frozenset[str]:
    """The names that training had, which are data wherever they stand: "put Kai, Emma, Hugo in reverse order"."""
    return frozenset((*(word for word in lexicon.whole() if word[0].isupper()), *lexicon.NEW_NAMES))


@cache
def single_tokens() -> frozenset[str]:
    """The words of data that are one token each, as they are written."""
    nouns_and_verbs = {word + "s" for word in lexicon.whole() if word.islower()}
    return lexicon.whole() | nouns_and_verbs | {*lexicon.NEW_NAMES, *lexicon.THINGS}


def request_and_data(prompt: str) -> tuple[list[str], int]:
    """The words of a prompt's request that say something, in lower case, and how many data it holds."""
    said, data = [], len(QUOTED.findall(prompt)) + len(re.findall("[0-9]+", prompt))
    for found in parts(prompt):
        rest = [word.lower() for word in found if len(word) > 1]
        data += sum(len(word) == 1 and word.isupper() and word not in "AI" for word in found) + rest.count("and")
        if asking() & set(rest):
            names = [
                word for word in found if word[0].isupper() and word in names_known() and word.lower() not in asking()
            ]
            data += len(names)
            said += [word for word in rest if word not in STOP_WORDS and word not in {name.lower() for name in names}]
        else:
            data += len(rest)
    return said, data


def parts(prompt: str) -> Iterator[list[str]]:
    """The words of each part of what is not in quotes."""
    for part in BETWEEN.split(QUOTED.sub(" ", prompt)):
        yield WORD.findall(part)


def spelt(prompt: str) -> list[str]:
    """The words of a prompt's data that take several tokens, each once: of those in quotes, or else, if half of what is
    no request is spelt, of that. One such word alone may be a request's."""
    quoted = [word for found in QUOTED.findall(prompt) for word in WORD.findall(found)]
    if quoted:
        return in_pieces(quoted)
    bare = [word for found in parts(prompt) if not asking() & {word.lower() for word in found} for word in found]
    found = in_pieces(bare)
    return found if 2 * len(found) >= len(bare) - len(STOP_WORDS.intersection(bare)) else []


def in_pieces(data: Sequence[str]) -> list[str]:
    """Of some words those that take several tokens, each once."""
    asked = STOP_WORDS | wordings.met()
    return [
        word
        for word in dict.fromkeys(data)
        if len(word) > 1 and word not in single_tokens() and word.lower() not in asked
    ]


def strange(prompt: str) -> set[str]:
    """The words in lower case, outside of quotes, that the models never met whole."""
    words = {word for found in parts(prompt) for word in found if word.islower() and len(word) > 1}
    return {word for word in words - STOP_WORDS - known() if word not in single_tokens()}


def is_outside(prompt: str) -> bool:
    """Whether the models were not trained on anything like this."""
    if len(strange(prompt)) >= MOST_STRANGE:
        return True
    said, data = request_and_data(prompt)
    share = sum(word in known() for word in said) / len(said) if said else 0.0
    return share < KNOWN_SHARE or data < 2


def warning(prompts: Sequence[str]) -> str | None:
    """One sentence if any of the prompts is outside, or else holds data that are spelt; None if all are within."""
    far = sum(map(is_outside, prompts))
    if far:
        which = "this prompt" if len(prompts) == 1 else f"{far} of these {len(prompts)} prompts"
        return (
            "The mini models were trained on small tasks with lists, puzzles and records and know nothing like "
            f"{which}, so what they answer there means nothing; try: {EXAMPLE}"
        )
    pieces = list(dict.fromkeys(word for prompt in prompts for word in spelt(prompt)))
    if not pieces:
        return None
    shown = ", ".join(pieces[:SHOWN]) + (f" and {len(pieces) - SHOWN} more" if len(pieces) > SHOWN else "")
    return (
        f"The mini models know {len(single_tokens()):,} words and spell others in pieces, here {shown}, and mostly get "
        f"lists of such words wrong; try: {EXAMPLE}"
    )
