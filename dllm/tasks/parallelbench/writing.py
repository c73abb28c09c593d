"""Words to be put into a sentence, for suites r1 and r2: of one everyday scene, of several, or rare ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from dllm.tasks.mini.word_lists import EVERYDAY, RARE
from dllm.tasks.parallelbench.record import Record
from dllm.tasks.parallelbench.waiting_line import MakeRecord


def words_maker(level: str, count: int) -> MakeRecord:
    """``level``: easy (words that go together), medium (common, unrelated) or hard (rare, unrelated fields)."""

    def make(rng: Random) -> Record:
        if level == "easy":
            words = rng.sample(rng.choice(list(EVERYDAY.values())), count)
        else:
            words = _unrelated(rng, EVERYDAY if level == "medium" else RARE, count)
        return Record({"words": spoken_list(words)}, {"words": words})

    return make


def _unrelated(rng: Random, themes: Mapping[str, Sequence[str]], count: int) -> list[str]:
    """A word from each of ``count`` themes, none twice (some words belong to two)."""
    while True:
        words = [rng.choice(themes[theme]) for theme in rng.sample(list(themes), count)]
        if len(set(words)) == count:
            return words


def spoken_list(words: Sequence[str]) -> str:
    """``dog, park, and throw``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])}, and {words[-1]}"
