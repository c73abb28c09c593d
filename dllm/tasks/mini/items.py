"""One item of a task, and what a maker of items may draw from."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from dllm.tasks.mini import lexicon, styles

TEST_SHARE = 8  # one item in eight is held back
# Items of known names, of spelt ones, of both. Where a spelt word is in an answer of many masks is uncertain, so
# that its tokens cost two to four nats even after training: with 14 % of each kind they made most of the loss.
KIND_WEIGHTS = (95, 2, 3)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the user asks, one right answer, what the scorer compares with, and of how many things it speaks."""

    task: str  # its name
    prompt: str  # what the user asks
    answer: str  # one right answer
    truth: dict[str, Any] = field(hash=False)  # what the scorer compares with
    key: str  # content that decides the split
    size: int  # of how many things it speaks

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}]

    @property
    def split(self) -> str:
        return "test" if zlib.crc32(self.key.encode()) % TEST_SHARE == 0 else "train"


@dataclass(frozen=True)
class Draw:
    rng: Random  # where its randomness comes from
    sizes: tuple[int, int] | None = None  # fewest and most things (None: as the task has them)
    # ``known`` (one token each), ``new`` (one token each, never trained on), ``spelt``, ``unseen`` (spelt, never
    # trained on) or ``mixed`` (as in training)
    names: str = "known"
    wording: str = "trained"  # see ``styles.ask``

    def size(self, low: int, high: int) -> int:
        """Between ``low`` and ``high`` things, and within ``sizes`` where the two meet. Three to five are twice as
        likely as others."""
        if self.sizes is not None:
            low, high = max(low, min(self.sizes[0], high)), min(high, max(self.sizes[1], low))
        sizes = range(low, high + 1)
        return self.rng.choices(sizes, [2 if 3 <= size <= 5 else 1 for size in sizes])[0]

    def some(self, count: int) -> list[str]:
        """So many different names."""
        kind = self.names
        if kind == "mixed":
            kind = self.rng.choices(("known", "spelt", "both"), KIND_WEIGHTS)[0]
        if kind in ("known", "new"):
            return self.rng.sample(lexicon.NAMES if kind == "known" else lexicon.NEW_NAMES, count)
        names: dict[str, None] = {}
        while len(names) < count:
            is_known = kind == "both" and self.rng.random() < 0.7
            names[self.rng.choice(lexicon.NAMES) if is_known else lexicon.invent(self.rng, kind != "unseen")] = None
        return list(names)

    @property
    def plain(self) -> bool:
        return self.wording == "plain"

    def list_text(self, items: list[str]) -> str:
        return styles.styled_list(items, self.rng, self.plain)

    def quote(self, word: str) -> str:
        """One word as a request names it."""
        return (styles.QUOTES[0] if self.plain else self.rng.choice(styles.QUOTES)).format(word)

    def sample(
        self, task: str, slots: Mapping[str, str], answer: str, truth: dict[str, Any], key: str, size: int
    ) -> Sample:
        return Sample(task, styles.ask(task, slots, self.rng, self.wording), answer, truth, key, size)


Make = Callable[[Draw], Sample]
