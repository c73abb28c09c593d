"""Where two decodes of one prompt part: the first forward and position that differ, and what each knew there.

Positions count from the answer's start, forwards from 1, as in ``Trace.to_frame`` and on the pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

from dllm.record.trace import Trace
from dllm.record.turns import TurnRecord


@dataclass(frozen=True)
class KnownThere:
    """What one decode knew of a position in a forward, and what it did."""

    word: str  # the token that it committed there, else its last proposal; empty: it made none
    confidence: float | None  # its probability (None: not known); of a proposal to two digits
    entropy: float | None  # of the distribution, in nats (None: not measured, or nothing was committed)
    does: str  # ``commits``, ``is made to commit``, ``replaces``, ``takes back``, ``fills``, ``waits`` or ``has ended``

    def __str__(self) -> str:
        if not self.word and self.confidence is None:
            return self.does
        sure = "" if self.confidence is None else f" at p {self.confidence:.3g}"
        spread = "" if self.entropy is None else f", entropy {self.entropy:.3g} nats"
        return f"{self.does} {self.word!r}{sure}{spread}"


@dataclass(frozen=True)
class Parting:
    """The first place where two decodes differ."""

    forward: int  # its number, from 1
    position: int  # the first that differs after it, from the answer's start
    known: tuple[KnownThere, KnownThere]  # of either decode


def parting(one: Trace, other: Trace) -> Parting | None:
    """Where the traces of one prompt part (None: they are equal)."""
    before = [list(trace.answers()) for trace in (one, other)]
    for number in range(1, max(map(len, before))):
        after = [canvases[min(number, len(canvases) - 1)] for canvases in before]
        if after[0] != after[1]:
            at = next(
                (at for at, pair in enumerate(zip(*after, strict=False)) if pair[0] != pair[1]), min(map(len, after))
            )
            return Parting(number, at, (known_at(one, number, at), known_at(other, number, at)))
    return None


def known_at(trace: Trace, forward: int, position: int) -> KnownThere:
    """What a decode knew of a position in a forward, by its number from 1."""
    path = trace.path()
    if forward > len(path):
        return KnownThere("", None, None, "has ended")
    record, kept = path[forward - 1]
    for edits, commits in enumerate(record.written(kept)):
        for at, token, confidence, entropy, forced in commits.rows():
            if at == position:
                does = "replaces it by" if edits else "is made to commit" if forced else "commits"
                spread = None if isnan(entropy) else entropy
                return KnownThere(trace.words.get(token, f"<{token}>"), confidence, spread, does)
    for does, places in (
        ("takes it back", record.remasked),
        ("fills it", record.filled),
        ("takes it back", record.rolled),
    ):
        if kept < len(places) and position in places[kept]:
            return KnownThere("", None, None, does)
    found = last_guess([record for record, _ in path[:forward]], position)
    if found is None:
        return KnownThere("", None, None, "waits")
    return KnownThere(trace.words.get(found[0], f"<{found[0]}>"), found[1] or None, None, "waits with")


def last_guess(records: Sequence[TurnRecord], position: int) -> tuple[int, float] | None:
    """The last proposal at a position, and its probability (0: not known); None: there is none."""
    for record in reversed(records):
        guesses = record.guesses
        for at, token, confidence in zip(guesses.positions, guesses.tokens, guesses.confidence, strict=True):
            if at == position:
                return token, confidence
    return None


def parted_rows(
    one: Sequence[int], other: Sequence[int], fixed: tuple[Sequence[int], Sequence[int]]
) -> tuple[int, int]:
    """The same from results alone: forward and position of the first difference of two canvases. fixed: the forward
    that fixed each of their positions, 0 where none did. Raises ValueError where nothing differs."""
    late = 1 << 30
    places = [
        (min(turn or late for turn in turns), at)
        for at, (tokens, turns) in enumerate(
            zip(zip(one, other, strict=False), zip(*fixed, strict=False), strict=False)
        )
        if tokens[0] != tokens[1] or turns[0] != turns[1]
    ]
    return min(places)
