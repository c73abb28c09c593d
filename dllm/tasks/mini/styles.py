"""How a request is written: a template opened up, its case, what is around it, and how lists and rows look."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random

from dllm.tasks.mini import wordings
from dllm.tasks.mini.lexicon import invent
from dllm.tasks.parallelbench.scoring import write_list

DISPENSABLE = frozenset(("a", "an", "it", "me", "my", "of", "the", "these", "this", "to"))  # a request does without
CHOICE, SLOT = re.compile(r"\(([^()]*)\)"), re.compile(r"(\{\w+\})")


def and_list(items: Sequence[str]) -> str:
    """``A, B and C``."""
    return ", ".join(items[:-1]) + " and " * (len(items) > 1) + items[-1]


LISTS: dict[Callable[[Sequence[str]], str], float] = {
    write_list: 45,
    lambda items: "['" + "', '".join(items) + "']": 12,
    ", ".join: 12,
    lambda items: f"[{', '.join(items)}]": 6,
    lambda items: '["' + '","'.join(items) + '"]': 5,
    and_list: 5,
    lambda items: '"' + '", "'.join(items) + '"': 4,
    ",".join: 3,
    "\n".join: 4,
    lambda items: "\n".join(f"- {item}" for item in items): 4,
}
QUOTES = ('"{}"', '"{}"', "'{}'", "{}")
CELLS, ROWS = (", ", ", ", " | ", " ", " - ", ","), ("\n", "\n", "; ")


def styled_list(items: Sequence[str], rng: Random, plain: bool = False) -> str:
    """The items in one of the ways in which people write lists."""
    return write_list(items) if plain else rng.choices(list(LISTS), list(LISTS.values()))[0](items)


def write_rows(rows: Sequence[Sequence[str]], rng: Random, plain: bool = False) -> str:
    """Records one after the other, cells separated."""
    cell, row = (", ", "\n") if plain else (rng.choice(CELLS), rng.choice(ROWS))
    return row.join(cell.join(cells) for cells in rows)


def open_up(template: str, rng: Random) -> str:
    """The template with every choice made, single spaces."""
    while CHOICE.search(template):
        template = CHOICE.sub(lambda match: rng.choice(match[1].split("|")), template, count=1)
    return re.sub(" +", " ", template).strip()


def change_case(text: str, rng: Random) -> str:
    """Three times in ten in lower case, capitals or title case; slots stay."""
    kind = rng.choices((None, str.lower, str.upper, str.title), (70, 17, 9, 4))[0]
    return text if kind is None else "".join(part if SLOT.match(part) else kind(part) for part in SLOT.split(text))


def add_courtesies(text: str, rng: Random) -> str:
    if rng.random() < 0.12 and not text.startswith("{"):
        text = rng.choice(wordings.BEFORE) + text[0].lower() + text[1:]
    return f"{text} {rng.choice(wordings.AFTER)}" if rng.random() < 0.08 else text


def strew_words(text: str, rng: Random) -> str:
    """The request with words in it that say nothing, and some short ones left out; what is in slots stays."""
    words = [word for word in text.split() if word.lower() not in DISPENSABLE or rng.random() < 0.85]
    for _ in range(rng.choices((0, 1, 2, 3, 4, 5), (15, 25, 25, 20, 10, 5))[0]):
        word = rng.choice(wordings.FILLERS) if rng.random() < 0.7 else invent(rng).lower()
        words.insert(rng.randint(0, len(words)), word)
    sentence = " ".join(words)
    return sentence[0].upper() + sentence[1:] if rng.random() < 0.8 else sentence


def ask(task: str, slots: Mapping[str, str], rng: Random, wording: str) -> str:
    """A request. slots: what templates name; ``items`` is put after the template if it does not name it.

    wording: ``plain`` (the first template, as it is), or one of ``wordings.SOURCES``; a second word after it puts idle
    words between its own.
    """
    if wording == "plain":
        text, separator = wordings.TRAINED[task][0], ":\n"
    else:
        source, _, strewing = wording.partition(" ")
        text = open_up(rng.choice(wordings.SOURCES[source][task]), rng)
        text = change_case(add_courtesies(strew_words(text, rng) if strewing else text, rng), rng)
        separator = rng.choices(wordings.SEPARATORS, (40, 15, 10, 4, 8, 4, 5, 4, 2, 2, 4))[0]
    if "{items}" not in text and slots.get("items"):
        last = wording == "plain" or rng.random() < 0.92
        text = f"{text}{separator}{{items}}" if last else f"{{items}}\n{text}"
    elif wording == "plain" or rng.random() < 0.3:
        text += ":"
    return SLOT.sub(lambda match: slots[match[1][1:-1]], text)
